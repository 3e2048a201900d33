//! control_plane

use super::common::{EnvVar, GenericCondition, LocalClusterAuthEndpoint};
use super::config::ClusterConfiguration;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEControlPlane",
    plural = "rkecontrolplanes",
    namespaced,
    doc = "RKEControlPlane",
    status = "RKEControlPlaneStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "rcp",
    category = "cluster-api",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1"),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"}"#,
    printcolumn = r#"{"name": "Initialized", "type": "string", "jsonPath": ".status.initialized"}"#,
    printcolumn = r#"{"name": "API Server Available", "type": "boolean", "jsonPath": ".status.initialization.controlPlaneInitialized"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.kubernetesVersion"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RKEControlPlaneSpec {
    #[serde(flatten)]
    pub config: ClusterConfiguration,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    #[schemars(extend("maxLength" = 63))]
    pub cluster_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    pub management_cluster_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_certificates: Option<RotateCertificates>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub unmanaged_config: bool,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEControlPlaneStatus {
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub agent_connected: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_spec: Option<Box<RKEControlPlaneSpec>>,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub certificate_rotation_generation: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub config_generation: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("enum" = serde_json::json!(["Started", "RestartCluster", "Finished", "Failed"])))]
    pub etcd_snapshot_create_phase: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("enum" = serde_json::json!(["Started", "Shutdown", "Restore", "PostRestorePodCleanup", "InitialRestartCluster", "PostRestoreNodeCleanup", "RestartCluster", "Finished", "Failed"])))]
    pub etcd_snapshot_restore_phase: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEControlPlaneInitializationStatus>,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub initialized: bool,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub observed_generation: i64,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub rotate_encryption_keys_leader: String,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub rotate_encryption_keys_phase: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RKEControlPlaneInitializationStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateEncryptionKeys {
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateCertificates {
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub services: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotRestore {
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    #[serde(
        rename = "restoreRKEConfig",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub restore_rke_config: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotCreate {
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
}
