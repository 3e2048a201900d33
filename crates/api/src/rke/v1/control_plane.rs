//! RKEControlPlane: the control plane provider's object, from which plans are made.

use super::common::{EnvVar, GenericCondition, LocalClusterAuthEndpoint};
use super::config::ClusterConfiguration;
use crate::wait::Wait;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEControlPlane",
    plural = "rkecontrolplanes",
    namespaced,
    doc = "Control plane of a K3s or RKE2 cluster; plans for its machines are made from it.",
    status = "RKEControlPlaneStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "rcp",
    category = "cluster-api",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1"),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Initialized", "type": "string", "jsonPath": ".status.initialized"}"#,
    printcolumn = r#"{"name": "API Server Available", "type": "boolean", "jsonPath": ".status.initialization.controlPlaneInitialized"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.kubernetesVersion"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 10}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RKEControlPlaneSpec {
    #[serde(flatten)]
    pub config: ClusterConfiguration,
    /// Environment of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    /// Name of the Cluster.
    #[schemars(extend("maxLength" = 63))]
    pub cluster_name: String,
    /// Asks for an etcd snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    /// Asks for an etcd restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    /// Version of the distribution, such as v1.34.1+k3s1.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    /// Direct access to the cluster's own API endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    /// Name of the management Cluster.
    pub management_cluster_name: String,
    /// Asks for new certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_certificates: Option<RotateCertificates>,
    /// Asks for new encryption keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
    /// Leaves the distribution's configuration alone.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub unmanaged_config: bool,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEControlPlaneStatus {
    /// True while the cluster agent is connected.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub agent_connected: bool,
    /// Spec that was last applied completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_spec: Option<Box<RKEControlPlaneSpec>>,
    /// Generation of the last certificate rotation.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub certificate_rotation_generation: i64,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// Generation of the configuration.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub config_generation: i64,
    /// Asks for an etcd snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("enum" = serde_json::json!(["Started", "RestartCluster", "Finished", "Failed"])))]
    pub etcd_snapshot_create_phase: String,
    /// Asks for an etcd restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("enum" = serde_json::json!(["Started", "Shutdown", "Restore", "PostRestorePodCleanup", "InitialRestartCluster", "PostRestoreNodeCleanup", "RestartCluster", "Finished", "Failed"])))]
    pub etcd_snapshot_restore_phase: String,
    /// Steps that happen once; each stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEControlPlaneInitializationStatus>,
    /// Same as initialization.controlPlaneInitialized, for older clients.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub initialized: bool,
    /// Generation that the last complete pass has seen.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub observed_generation: i64,
    /// True once the cluster has been ready.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    /// Asks for new encryption keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub rotate_encryption_keys_leader: String,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub rotate_encryption_keys_phase: String,
    /// What is waited for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<Wait>,
}

/// Steps that happen once; each stays true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RKEControlPlaneInitializationStatus {
    /// True once the control plane answers for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// Asks for new encryption keys; each new generation is one request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateEncryptionKeys {
    /// Increase to ask again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
}

/// Asks for new certificates; each new generation is one request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateCertificates {
    /// Increase to ask again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
    /// Networks of services.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub services: Vec<String>,
}

/// Asks for an etcd restore; each new generation is one request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotRestore {
    /// Increase to ask again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    /// What is restored besides data: none, kubernetesVersion or all.
    #[serde(
        rename = "restoreRKEConfig",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub restore_rke_config: String,
}

/// Asks for an etcd snapshot; each new generation is one request.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotCreate {
    /// Increase to ask again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
}
