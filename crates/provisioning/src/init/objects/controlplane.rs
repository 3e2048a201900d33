//! The RKEControlPlane. Pure.

use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_api::provisioning::v1::{Cluster, RKEConfig};
use drover_api::rke::v1::{RKEControlPlane, RKEControlPlaneSpec};
use kube::api::ObjectMeta;
use serde_json::json;

use super::Sources;
use super::cluster::meta;
use crate::keys::{annotations, labels};

/// The RKEControlPlane.
pub fn control_plane(cluster: &Cluster, config: &RKEConfig, sources: &Sources) -> RKEControlPlane {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let mut notes = [(annotations::CLUSTER_SPEC.to_owned(), sources.recorded_spec.clone())].to_vec();
    let prime = annotations::RKE2_PRIME_ENABLED;
    let chosen = cluster.metadata.annotations.as_ref().and_then(|notes| notes.get(prime));
    notes.extend(chosen.map(|value| (prime.to_owned(), value.clone())));
    let designated = cluster.metadata.labels.as_ref().and_then(|l| l.get(labels::INIT_NODE_MACHINE_ID));
    let marks = [
        (labels::INIT_NODE_MACHINE_ID.to_owned(), designated.cloned().unwrap_or_default()),
        (labels::capi::CLUSTER_NAME.to_owned(), name.clone()),
    ];
    RKEControlPlane {
        metadata: ObjectMeta {
            labels: Some(marks.into()),
            annotations: Some(notes.into_iter().collect()),
            ..meta(cluster)
        },
        spec: RKEControlPlaneSpec {
            config: config.config.clone(),
            agent_env_vars: cluster.spec.agent_env_vars.clone(),
            cluster_name: name,
            etcd_snapshot_create: config.etcd_snapshot_create.clone(),
            etcd_snapshot_restore: config.etcd_snapshot_restore.clone(),
            kubernetes_version: cluster.spec.kubernetes_version.clone(),
            local_cluster_auth_endpoint: cluster.spec.local_cluster_auth_endpoint.clone(),
            management_cluster_name: sources.management_name.clone(),
            rotate_certificates: config.rotate_certificates.clone(),
            rotate_encryption_keys: config.rotate_encryption_keys.clone(),
            ..RKEControlPlaneSpec::default()
        },
        status: None,
    }
}

/// base64(gzip(JSON)) of the spec without the operations of day two, for snapshots to remember.
pub fn recorded_spec(cluster: &Cluster) -> String {
    let mut spec = cluster.spec.clone();
    if let Some(config) = &mut spec.rke_config {
        config.etcd_snapshot_create = None;
        config.etcd_snapshot_restore = None;
        config.rotate_certificates = None;
        config.rotate_encryption_keys = None;
    }
    let bytes = crate::digest::go_json(&json!(spec));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    // Writing to memory does not fail.
    let packed = encoder.write_all(&bytes).and_then(|()| encoder.finish()).unwrap_or_default();
    BASE64_STANDARD.encode(packed)
}
