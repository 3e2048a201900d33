//! Nodes whose Machine does not exist any more. Too small for rooms of its own: [`lost`] decides.
//!
//! A Machine whose cluster is out of reach goes after its `nodeDeletionTimeoutSeconds` and leaves its Node behind.
//! Once the cluster answers again, such a Node is deleted: it names a Machine that does not exist, and its kubelet
//! is silent. A Node that still reports is left alone, whatever the management plane remembers: one that was
//! restored from an old backup must not cost a running cluster its Nodes.

use std::collections::HashSet;
use std::sync::Arc;

use drover_api::capi::v1beta2 as capi;
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Node;

use super::nodelookup::is_ready;
use crate::context::Context;
use crate::keys::labels;

/// Reconciles the Nodes of one RKEControlPlane's cluster.
pub struct LostNodes {
    context: Context,
}

impl LostNodes {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone() }
    }
}

impl Reconciler for LostNodes {
    const NAME: &'static str = "machinenodecollect";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(control_plane) = self.context.store.control_planes.get(&key) else { return Ok(Next::EVENT) };
        if control_plane.metadata.deletion_timestamp.is_some() {
            return Ok(Next::EVENT);
        }
        // A new connection is an event.
        let Ok(cluster) = self.context.downstream.cluster(&key) else { return Ok(Next::EVENT) };
        let nodes = cluster.nodes().list();
        // Read after the Nodes: a Machine is older than its Node.
        let machines =
            self.context.store.machines.by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name);
        for node in lost(&nodes, &machines) {
            let (name, uid) = (node.metadata.name.as_deref(), node.metadata.uid.as_deref());
            let (Some(name), Some(uid)) = (name, uid) else { continue };
            let deleted = cluster.delete_node(name, Some(uid)).await;
            deleted.map_err(Error::api(format!("delete Node {name} of {key}")))?;
            tracing::info!(cluster = %key, node = name, "deleted the Node of a Machine that is gone");
        }
        Ok(Next::EVENT)
    }
}

/// The Nodes to delete.
fn lost<'a>(nodes: &'a [Arc<Node>], machines: &[Arc<capi::Machine>]) -> Vec<&'a Arc<Node>> {
    let known: HashSet<&str> =
        machines.iter().filter_map(|machine| machine.metadata.uid.as_deref()).collect();
    let is_lost = |node: &&Arc<Node>| {
        let machine = node.metadata.labels.as_ref().and_then(|labels| labels.get(labels::MACHINE_UID));
        let nameless = machine.is_some_and(|uid| !uid.is_empty() && !known.contains(uid.as_str()));
        nameless && node.metadata.deletion_timestamp.is_none() && !is_ready(node)
    };
    nodes.iter().filter(is_lost).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_silent_node_of_a_machine_that_is_gone_is_lost() {
        let node = |name: &str, machine: &str, ready: &str| -> Arc<Node> {
            let node = json!({
                "metadata": {"name": name, "labels": {labels::MACHINE_UID: machine}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            Arc::new(serde_json::from_value(node).unwrap())
        };
        let machine: capi::Machine = serde_json::from_value(json!({
            "metadata": {"name": "m", "uid": "here"},
            "spec": {"clusterName": "demo", "bootstrap": {},
                "infrastructureRef": {"apiGroup": "rke.cattle.io", "kind": "CustomMachine", "name": "m"}},
        }))
        .unwrap();
        let nodes = [
            node("serves", "here", "Unknown"),
            node("lost", "gone", "Unknown"),
            node("reports", "gone", "True"),
            node("unlabelled", "", "Unknown"),
        ];
        let names: Vec<_> = lost(&nodes, &[Arc::new(machine)])
            .iter()
            .filter_map(|node| node.metadata.name.as_deref())
            .collect();
        assert_eq!(names, ["lost"]);
    }
}
