//! Reads caches into a [`Scope`].

use std::collections::BTreeSet;
use std::sync::Arc;

use drover_access_api::{ClusterHandle, provider_id as provider_id_of};
use drover_api::capi::v1beta2::Machine;
use drover_api::labels::capi as labels;
use drover_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::MachineController;
use super::scope::{DrainView, NodeView, Scope};
use crate::meta;

impl MachineController {
    pub(super) async fn observe(&self, machine: &Machine) -> Scope {
        let namespace = machine.namespace().unwrap_or_default();
        let cluster_key = ObjectKey::new(&namespace, &machine.spec.cluster_name);
        let cluster = self.caches.clusters.get(&cluster_key);
        let control_plane_ref = cluster.as_ref().and_then(|cluster| cluster.spec.control_plane_ref.clone());
        let set = meta::controller_of(&machine.metadata)
            .filter(|owner| meta::is_core_owner(owner, "MachineSet"))
            .and_then(|owner| self.caches.machine_sets.get(&ObjectKey::new(&namespace, &owner.name)));
        let deployment = set
            .as_ref()
            .and_then(|set| meta::controller_of(&set.metadata))
            .filter(|owner| meta::is_core_owner(owner, "MachineDeployment"))
            .and_then(|owner| self.caches.machine_deployments.get(&ObjectKey::new(&namespace, &owner.name)));
        let mut scope = Scope {
            machine: machine.clone(),
            cluster,
            leaving: self.access.is_being_deleted(&cluster_key),
            set,
            deployment,
            bootstrap: self.externals.get(&namespace, machine.spec.bootstrap.config_ref.as_ref()).await,
            infra: self.externals.get(&namespace, Some(&machine.spec.infrastructure_ref)).await,
            control_plane: self.externals.get(&namespace, control_plane_ref.as_ref()).await,
            control_plane_machines: 0,
            node: NodeView::NotSought,
            drain: None,
        };
        if scope.is_deleting() {
            let siblings =
                self.caches.machines.by_label(labels::CLUSTER_NAME, &namespace, &machine.spec.cluster_name);
            let staying = siblings.iter().filter(|sibling| {
                meta::label(&sibling.metadata, labels::CONTROL_PLANE).is_some()
                    && !meta::is_deleting(&sibling.metadata)
            });
            scope.control_plane_machines = staying.count();
        }
        self.observe_node(&mut scope, &cluster_key).await;
        scope
    }

    async fn observe_node(&self, scope: &mut Scope, cluster: &ObjectKey) {
        let provided = scope.infra.provided().and_then(|infra| infra.provider_id());
        let provider_id = scope.machine.spec.provider_id.clone().or(provided);
        let name = scope.node_name().map(str::to_owned);
        if provider_id.is_none() && name.is_none() {
            return;
        }
        let handle = match self.access.cluster(cluster) {
            Ok(handle) => handle,
            Err(lost) => {
                scope.node = NodeView::Disconnected(lost);
                return;
            }
        };
        scope.node = find_node(handle.nodes().list(), provider_id.as_deref(), name.as_deref());
        if scope.is_deleting()
            && let NodeView::Found(node) = &scope.node
        {
            scope.drain = Some(observe_drain(&handle, &node.name_any()).await);
        }
    }
}

/// The Node with the provider id; later the Node with the recorded name.
pub(super) fn find_node(nodes: Vec<Arc<Node>>, provider_id: Option<&str>, name: Option<&str>) -> NodeView {
    if let Some(name) = name {
        return match nodes.into_iter().find(|node| node.name_any() == name) {
            Some(node) => NodeView::Found(node),
            None => NodeView::Absent,
        };
    }
    let has_id = |node: &Arc<Node>| provider_id_of(node).is_some_and(|id| Some(id) == provider_id);
    let mut found: Vec<Arc<Node>> = nodes.into_iter().filter(has_id).collect();
    match found.len() {
        0 => NodeView::Absent,
        1 => found.pop().map_or(NodeView::Absent, NodeView::Found),
        _ => NodeView::Several(found.iter().map(|node| node.name_any()).collect()),
    }
}

async fn observe_drain(cluster: &ClusterHandle, node: &str) -> DrainView {
    let gathered = async {
        let pods = cluster.pods(node).await?;
        let mut daemon_sets = BTreeSet::new();
        for (namespace, name) in daemon_set_owners(&pods) {
            if cluster.daemon_set_exists(&namespace, &name).await? {
                daemon_sets.insert(format!("{namespace}/{name}"));
            }
        }
        let volumes = cluster.attached_volumes(node).await?;
        Ok::<_, kube::Error>(DrainView { pods, daemon_sets, volumes, error: None })
    };
    gathered.await.unwrap_or_else(|error| DrainView {
        error: Some(format!("failed to list the pods of Node {node}: {error}")),
        ..DrainView::default()
    })
}

fn daemon_set_owners(pods: &[Pod]) -> BTreeSet<(String, String)> {
    pods.iter()
        .filter_map(|pod| {
            let owner = meta::controller_of(&pod.metadata).filter(|owner| owner.kind == "DaemonSet")?;
            Some((pod.namespace().unwrap_or_default(), owner.name.clone()))
        })
        .collect()
}
