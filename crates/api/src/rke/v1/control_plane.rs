//! RKEControlPlane: the control plane provider's object, from which machine plans are generated.

use super::common::{EnvVar, GenericCondition, LocalClusterAuthEndpoint};
use super::config::ClusterConfiguration;
use crate::wait::Wait;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the RKEControlPlane.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEControlPlane",
    plural = "rkecontrolplanes",
    namespaced,
    doc = "The control plane of a K3s or RKE2 cluster. The plans of its machines are generated from it.",
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
    /// Environment variables of the node agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    /// The name of the Cluster that the control plane belongs to.
    #[schemars(extend("maxLength" = 63))]
    pub cluster_name: String,
    /// A request to create an etcd snapshot. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    /// A request to restore an etcd snapshot. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    /// The version of the distribution, for example v1.34.1+k3s1.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    /// The authorized cluster endpoint. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    /// The name of the management Cluster.
    pub management_cluster_name: String,
    /// A request to rotate certificates. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_certificates: Option<RotateCertificates>,
    /// A request to rotate encryption keys. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
    /// Whether the configuration of the distribution is managed outside Drover. If true, plans contain no
    /// configuration files.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub unmanaged_config: bool,
}

/// The observed state of the RKEControlPlane.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEControlPlaneStatus {
    /// Whether the cluster agent is connected.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub agent_connected: bool,
    /// The spec that was last applied to all machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_spec: Option<Box<RKEControlPlaneSpec>>,
    /// The generation of the most recent certificate rotation.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub certificate_rotation_generation: i64,
    /// The conditions of the RKEControlPlane, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// The generation of the configuration. A change of this number restarts the distribution on all
    /// machines.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub config_generation: i64,
    /// The most recent request to create an etcd snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    /// The phase of the most recent request to create an etcd snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("enum" = serde_json::json!(["Started", "RestartCluster", "Finished", "Failed"])))]
    pub etcd_snapshot_create_phase: String,
    /// The most recent request to restore an etcd snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    /// The phase of the most recent request to restore an etcd snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("enum" = serde_json::json!(["Started", "Shutdown", "Restore", "PostRestorePodCleanup", "InitialRestartCluster", "PostRestoreNodeCleanup", "RestartCluster", "Finished", "Failed"])))]
    pub etcd_snapshot_restore_phase: String,
    /// Initialization steps that are complete. A step that is true remains true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEControlPlaneInitializationStatus>,
    /// The same value as initialization.controlPlaneInitialized, for older clients.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub initialized: bool,
    /// The most recent generation of the object that was reconciled without an error.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub observed_generation: i64,
    /// The same value as initialization.controlPlaneInitialized, for older clients.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    /// The most recent request to rotate encryption keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
    /// The machine on which the encryption keys are rotated.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub rotate_encryption_keys_leader: String,
    /// The phase of the most recent request to rotate encryption keys.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub rotate_encryption_keys_phase: String,
    /// What the control plane provider is waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<Wait>,
}

/// Initialization steps that are complete. A step that is true remains true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RKEControlPlaneInitializationStatus {
    /// True after the API server of the control plane has become reachable for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// A request to rotate encryption keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateEncryptionKeys {
    /// The generation of the request. Increase it to make a new request.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
}

/// A request to rotate certificates.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateCertificates {
    /// The generation of the request. Increase it to make a new request.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
    /// The services whose certificates are rotated.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub services: Vec<String>,
}

/// A request to restore an etcd snapshot.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotRestore {
    /// The generation of the request. Increase it to make a new request.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
    /// The name of the snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    /// The configuration that is restored in addition to the data: none, kubernetesVersion or all.
    #[serde(
        rename = "restoreRKEConfig",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub restore_rke_config: String,
}

/// A request to create an etcd snapshot.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotCreate {
    /// The generation of the request. Increase it to make a new request.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub generation: i64,
}
