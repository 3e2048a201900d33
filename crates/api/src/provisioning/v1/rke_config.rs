//! Machine pools, operations and distribution configuration of a Cluster.

use std::collections::BTreeMap;

use crate::rke::v1::{
    ClusterConfiguration, ETCDSnapshotCreate, ETCDSnapshotRestore, RotateCertificates, RotateEncryptionKeys,
    UserdataSpec,
};
use crate::schema;
use k8s_openapi::api::core::v1::{ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pools and configuration of a K3s or RKE2 cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEConfig {
    #[serde(flatten)]
    pub config: ClusterConfiguration,
    /// Asks for an etcd snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    /// Asks for an etcd restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    /// Object that stands for the infrastructure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_reference")]
    pub infrastructure_ref: Option<ObjectReference>,
    /// Defaults of all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_pool_defaults: Option<RKEMachinePoolDefaults>,
    /// The pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxItems" = 1000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub machine_pools: Vec<RKEMachinePool>,
    /// Asks for new certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_certificates: Option<RotateCertificates>,
    /// Asks for new encryption keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
}

/// A number of equal machines with the same roles.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = serde_json::json!([{"message": "AutoscalingMinSize must be greater than 0 when ControlPlaneRole is true", "rule": "!has(self.controlPlaneRole) || !self.controlPlaneRole || !has(self.autoscalingMinSize) || self.autoscalingMinSize > 0"}, {"message": "AutoscalingMinSize must be greater than 0 when EtcdRole is true", "rule": "!has(self.etcdRole) || !self.etcdRole || !has(self.autoscalingMinSize) || self.autoscalingMinSize > 0"}, {"message": "AutoscalingMinSize must be less than or equal to AutoscalingMaxSize when both are non-nil", "rule": "!has(self.autoscalingMaxSize) || !has(self.autoscalingMinSize) || self.autoscalingMinSize <= self.autoscalingMaxSize"}, {"message": "AutoscalingMinSize and AutoscalingMaxSize must both be set if enabling cluster-autoscaling", "rule": "(has(self.autoscalingMinSize) && has(self.autoscalingMaxSize)) || (!has(self.autoscalingMinSize) && !has(self.autoscalingMaxSize))"}])))]
pub struct RKEMachinePool {
    /// Largest number that the autoscaler may choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling_max_size: Option<i32>,
    /// Smallest number that the autoscaler may choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling_min_size: Option<i32>,
    /// Cloud credential: `namespace:name`, or a bare name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 317))]
    pub cloud_credential_secret_name: String,
    /// Machines run the control plane.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub control_plane_role: bool,
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub display_name: String,
    /// Drains a node before its machine is removed.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub drain_before_delete: bool,
    /// How long that drain may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_before_delete_timeout: Option<String>,
    /// The driver's fields when the pool was made, as JSON; others are ignored.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub dynamic_schema_spec: String,
    /// Machines run etcd.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub etcd_role: bool,
    /// Longest hostname of a machine.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 10, "maximum" = 63))]
    pub hostname_length_limit: i64,
    /// Labels of the pool's nodes.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub labels: BTreeMap<String, String>,
    /// Object with the driver's settings for the pool.
    #[schemars(schema_with = "schema::object_reference")]
    pub machine_config_ref: ObjectReference,
    /// Annotations of the MachineDeployment.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub machine_deployment_annotations: BTreeMap<String, String>,
    /// Labels of the MachineDeployment.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub machine_deployment_labels: BTreeMap<String, String>,
    /// Operating system: linux or windows.
    #[serde(
        rename = "machineOS",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub machine_os: String,
    /// Replaces only while at most this many are unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<String>,
    /// Name.
    #[schemars(extend("minLength" = 1))]
    pub name: String,
    /// How long a machine may take to become a node; 0 means as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_startup_timeout: Option<String>,
    /// Holds all changes to the pool.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub paused: bool,
    /// Number of machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub quantity: Option<i32>,
    /// Limits of a rolling update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RKEMachinePoolRollingUpdate>,
    /// Taints of the pool's nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Vec<Taint>,
    /// How long a node may be not ready before its machine is replaced; unset means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_node_timeout: Option<String>,
    /// Replaces only while the number of unhealthy machines is in `[a-b]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_range: Option<String>,
    /// User data for external infrastructure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub userdata: Option<UserdataSpec>,
    /// Machines run workloads.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub worker_role: bool,
}

/// How many machines may be added or missing while the pool is replaced.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEMachinePoolRollingUpdate {
    /// Machines above the number asked for: a number, or a percentage rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Machines that may be missing: a number, or a percentage rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// Defaults of all pools.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEMachinePoolDefaults {
    /// Longest hostname of a machine.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 10, "maximum" = 63))]
    pub hostname_length_limit: i64,
}
