//! The status of the management Cluster. Pure.

use drover_api::management::v3 as management;
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::{GenericCondition, RKEControlPlane};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::conditions::{self as generic, TRUE};
use crate::keys::{annotations, conditions as types};

/// What is applied to the twin's status. Only conditions that are ours appear, so that those of others stay.
pub fn status(
    twin: &management::Cluster,
    cluster: &Cluster,
    control_plane: Option<&RKEControlPlane>,
    machines: usize,
    now: Timestamp,
) -> management::ClusterStatus {
    let live = twin.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut list: Vec<GenericCondition> = Vec::new();
    let mut copy = |target: &str, source: &GenericCondition| {
        let mut one: Vec<GenericCondition> = generic::get(&live, target).cloned().into_iter().collect();
        generic::copy(&mut one, target, source, now);
        list.extend(one);
    };
    let conditions = control_plane.and_then(|cp| cp.status.as_ref()).map(|status| &status.conditions[..]);
    let of = |type_: &str| conditions.and_then(|list| generic::get(list, type_));
    let stable = of(types::STABLE).is_some_and(|stable| stable.status == TRUE);
    if let Some(ready) = of(types::READY) {
        copy(types::UPDATED, ready);
        // The tunnel and its health checks know nothing of a stopped cluster, so readiness stays ours.
        copy(types::READY, ready);
    }
    if let Some(provisioned) = of(types::PROVISIONED) {
        copy(types::PROVISIONED, provisioned);
    }
    list.sort_by(|a, b| a.type_.cmp(&b.type_));
    let pools = cluster.spec.rke_config.as_ref().map(|config| &config.machine_pools[..]).unwrap_or_default();
    let chosen = cluster.metadata.annotations.as_ref().and_then(|a| a.get(annotations::UI_PROVIDER)).cloned();
    let provider = chosen.unwrap_or_else(|| match pools.first() {
        None => "custom".to_owned(),
        Some(pool) => {
            let kind = pool.machine_config_ref.kind.as_deref().unwrap_or_default();
            kind.strip_suffix("Config").unwrap_or(kind).to_lowercase()
        }
    });
    let distribution = if cluster.spec.kubernetes_version.contains("k3s") { "k3s" } else { "rke2" };
    management::ClusterStatus {
        conditions: list,
        driver: "imported".to_owned(),
        provider: distribution.to_owned(),
        ready_reconciling: !stable,
        info: Some(management::ClusterInfo {
            machine_provider: provider,
            kubernetes_version: cluster.spec.kubernetes_version.clone(),
            node_count: i64::try_from(machines).unwrap_or(i64::MAX),
            provisioning_cluster_ref: Some(ObjectReference {
                api_version: Some(drover_api::provisioning::v1::API_VERSION.to_owned()),
                kind: Some("Cluster".to_owned()),
                namespace: cluster.metadata.namespace.clone(),
                name: cluster.metadata.name.clone(),
                ..ObjectReference::default()
            }),
            ..management::ClusterInfo::default()
        }),
        ..management::ClusterStatus::default()
    }
}
