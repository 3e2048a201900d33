//! Nodes that nobody came back for.
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
use crate::downstream::DownstreamError;
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
        let management = &control_plane.spec.management_cluster_name;
        if control_plane.metadata.deletion_timestamp.is_some() || !self.context.is_connected(management) {
            // The tunnel's opening is an event.
            return Ok(Next::EVENT);
        }
        let downstream = &self.context.downstream;
        let failed = || Error::other(format!("collect the Nodes of {key}"));
        let nodes = match downstream.nodes(management, labels::MACHINE_UID).await {
            // It counts as connected until its tunnel had the time to come back, and that is an event too.
            Err(DownstreamError::Disconnected(_)) => return Ok(Next::EVENT),
            nodes => nodes.map_err(failed())?,
        };
        // Read after the Nodes: a Machine is older than its Node.
        let machines =
            self.context.store.machines.by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name);
        for node in lost(&nodes, &machines) {
            let (name, uid) = (node.metadata.name.as_deref(), node.metadata.uid.as_deref());
            let (Some(name), Some(uid)) = (name, uid) else { continue };
            downstream.delete_node(management, name, uid).await.map_err(failed())?;
            tracing::info!(cluster = %key, node = name, "deleted the Node of a Machine that is gone");
        }
        Ok(Next::EVENT)
    }
}

/// The Nodes to delete.
fn lost<'a>(nodes: &'a [Node], machines: &[Arc<capi::Machine>]) -> Vec<&'a Node> {
    let known: HashSet<&str> =
        machines.iter().filter_map(|machine| machine.metadata.uid.as_deref()).collect();
    let is_lost = |node: &&Node| {
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
        let node = |name: &str, machine: &str, ready: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {labels::MACHINE_UID: machine}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap()
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
