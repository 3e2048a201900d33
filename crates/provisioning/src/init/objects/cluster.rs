//! The Cluster of Cluster API and its infrastructure. Pure.

use std::collections::BTreeMap;

use drover_api::capi::v1beta2::{self as capi, ContractVersionedObjectReference};
use drover_api::provisioning::v1::{Cluster, RKEConfig};
use drover_api::rke::v1::{APIEndpoint, RKECluster, RKEClusterSpec};
use kube::api::ObjectMeta;

use super::group_of;
use crate::cluster::decide::ENDPOINT;
use crate::keys::annotations;
use crate::owner::controller_reference;

/// The RKECluster.
pub fn rke_cluster(cluster: &Cluster) -> RKECluster {
    let key = annotations::DELETE_MISSING_CUSTOM_MACHINES_AFTER;
    let after = cluster.metadata.annotations.as_ref().and_then(|notes| notes.get(key));
    RKECluster {
        metadata: ObjectMeta {
            annotations: after.map(|after| [(key.to_owned(), after.clone())].into()),
            ..meta(cluster)
        },
        spec: RKEClusterSpec {
            // Its controller would set it with a write of its own.
            control_plane_endpoint: Some(APIEndpoint { host: ENDPOINT.0.to_owned(), port: ENDPOINT.1 }),
        },
        ..RKECluster::default()
    }
}

/// The Cluster of Cluster API.
pub fn capi_cluster(cluster: &Cluster, config: &RKEConfig) -> capi::Cluster {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let mut notes = BTreeMap::new();
    let paused = annotations::CLUSTER_AUTOSCALER_PAUSED;
    let is_paused =
        cluster.metadata.annotations.as_ref().is_some_and(|a| a.get(paused).is_some_and(|v| !v.is_empty()));
    if is_paused {
        notes.insert(paused.to_owned(), "true".to_owned());
    } else if config.machine_pools.iter().any(|pool| pool.autoscaling_min_size.is_some()) {
        notes.insert(annotations::CLUSTER_AUTOSCALER_ENABLED.to_owned(), "true".to_owned());
    }
    let reference = |group: &str, kind: &str, name: &str| ContractVersionedObjectReference {
        api_group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    };
    let infrastructure = match &config.infrastructure_ref {
        None => reference("rke.cattle.io", "RKECluster", &name),
        Some(external) => reference(
            group_of(external.api_version.as_deref().unwrap_or_default()),
            external.kind.as_deref().unwrap_or_default(),
            external.name.as_deref().unwrap_or_default(),
        ),
    };
    capi::Cluster {
        metadata: ObjectMeta {
            annotations: Some(notes),
            owner_references: Some(vec![controller_reference(cluster)]),
            ..meta(cluster)
        },
        spec: capi::ClusterSpec {
            infrastructure_ref: Some(infrastructure),
            control_plane_ref: Some(reference("rke.cattle.io", "RKEControlPlane", &name)),
            ..capi::ClusterSpec::default()
        },
        status: None,
    }
}

/// Name and namespace, which are those of the provisioning Cluster.
pub(super) fn meta(cluster: &Cluster) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(cluster.metadata.namespace.clone().unwrap_or_default()),
        name: Some(cluster.metadata.name.clone().unwrap_or_default()),
        ..ObjectMeta::default()
    }
}
