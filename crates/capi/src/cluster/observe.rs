//! Reads caches into a [`Scope`].

use drover_api::capi::v1beta2::Cluster;
use drover_api::labels::capi as labels;
use drover_runtime::ObjectKey;
use kube::ResourceExt;

use super::ClusterController;
use super::scope::Scope;

impl ClusterController {
    pub(super) async fn observe(&self, cluster: &Cluster) -> Scope {
        let key = ObjectKey::of(cluster);
        let namespace = cluster.namespace().unwrap_or_default();
        Scope {
            cluster: cluster.clone(),
            infra: self.externals.get(&namespace, cluster.spec.infrastructure_ref.as_ref()).await,
            control_plane: self.externals.get(&namespace, cluster.spec.control_plane_ref.as_ref()).await,
            deployments: self.caches.machine_deployments.by_label(
                labels::CLUSTER_NAME,
                &namespace,
                &key.name,
            ),
            sets: self.caches.machine_sets.by_label(labels::CLUSTER_NAME, &namespace, &key.name),
            machines: self.caches.machines.by_label(labels::CLUSTER_NAME, &namespace, &key.name),
            disconnected: self.access.cluster(&key).err(),
        }
    }
}
