//! The machine pools, operations and distribution configuration of a Cluster.

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

/// The machine pools and the configuration of a K3s or RKE2 cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEConfig {
    #[serde(flatten)]
    pub config: ClusterConfiguration,
    /// A request to create an etcd snapshot. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_create: Option<ETCDSnapshotCreate>,
    /// A request to restore an etcd snapshot. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_restore: Option<ETCDSnapshotRestore>,
    /// A reference to the object that represents the infrastructure of the cluster. If unset, an RKECluster
    /// is created. Not supported yet: setting it is reported as having no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_reference")]
    pub infrastructure_ref: Option<ObjectReference>,
    /// Default values for all machine pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_pool_defaults: Option<RKEMachinePoolDefaults>,
    /// The machine pools of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxItems" = 1000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub machine_pools: Vec<RKEMachinePool>,
    /// A request to rotate certificates. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_certificates: Option<RotateCertificates>,
    /// A request to rotate encryption keys. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_encryption_keys: Option<RotateEncryptionKeys>,
}

/// A pool of identical machines with the same roles.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = serde_json::json!([{"message": "AutoscalingMinSize must be greater than 0 when ControlPlaneRole is true", "rule": "!has(self.controlPlaneRole) || !self.controlPlaneRole || !has(self.autoscalingMinSize) || self.autoscalingMinSize > 0"}, {"message": "AutoscalingMinSize must be greater than 0 when EtcdRole is true", "rule": "!has(self.etcdRole) || !self.etcdRole || !has(self.autoscalingMinSize) || self.autoscalingMinSize > 0"}, {"message": "AutoscalingMinSize must be less than or equal to AutoscalingMaxSize when both are non-nil", "rule": "!has(self.autoscalingMaxSize) || !has(self.autoscalingMinSize) || self.autoscalingMinSize <= self.autoscalingMaxSize"}, {"message": "AutoscalingMinSize and AutoscalingMaxSize must both be set if enabling cluster-autoscaling", "rule": "(has(self.autoscalingMinSize) && has(self.autoscalingMaxSize)) || (!has(self.autoscalingMinSize) && !has(self.autoscalingMaxSize))"}])))]
pub struct RKEMachinePool {
    /// The maximum number of machines for the autoscaler. Not implemented yet: the value is stored but has no
    /// effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling_max_size: Option<i32>,
    /// The minimum number of machines for the autoscaler. Not implemented yet: the value is stored but has no
    /// effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling_min_size: Option<i32>,
    /// The Secret with the cloud credential: `namespace:name`, or only a name. Defaults to that of the
    /// cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 317))]
    pub cloud_credential_secret_name: String,
    /// Whether the machines run the Kubernetes control plane.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub control_plane_role: bool,
    /// The name that is shown in user interfaces. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub display_name: String,
    /// Whether a node is drained before its machine is deleted.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub drain_before_delete: bool,
    /// The timeout of that drain, as a duration such as 10m. If unset or 0, there is no time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_before_delete_timeout: Option<String>,
    /// The fields of the machine driver when the pool was created, as JSON. Other fields of the machine
    /// configuration are ignored. Drover sets it.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub dynamic_schema_spec: String,
    /// Whether the machines run etcd.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub etcd_role: bool,
    /// The maximum length of the machines' hostnames, from 10 to 63 characters. If 0, the default of the
    /// cluster is used.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 10, "maximum" = 63))]
    pub hostname_length_limit: i64,
    /// Labels for the nodes of the pool.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub labels: BTreeMap<String, String>,
    /// A reference to the object with the configuration of the machine driver.
    #[schemars(schema_with = "schema::object_reference")]
    pub machine_config_ref: ObjectReference,
    /// Additional annotations of the MachineDeployment.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub machine_deployment_annotations: BTreeMap<String, String>,
    /// Additional labels of the MachineDeployment.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub machine_deployment_labels: BTreeMap<String, String>,
    /// The operating system of the machines. Defaults to linux, which is the only supported value.
    #[serde(
        rename = "machineOS",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub machine_os: String,
    /// The maximum number of unhealthy machines up to which machines are replaced: an absolute number or a
    /// percentage. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<String>,
    /// The name of the pool.
    #[schemars(extend("minLength" = 1))]
    pub name: String,
    /// The duration within which a new machine must have a Node. Defaults to 10m; 0 means no time limit. Not
    /// implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_startup_timeout: Option<String>,
    /// Whether changes to the pool are paused.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub paused: bool,
    /// The desired number of machines. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub quantity: Option<i32>,
    /// The limits of a rolling update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RKEMachinePoolRollingUpdate>,
    /// Taints for the nodes of the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Vec<Taint>,
    /// The duration after which the machine of a node that is not ready is replaced. If unset or 0, such
    /// machines are not replaced. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_node_timeout: Option<String>,
    /// The range of the number of unhealthy machines within which machines are replaced, in the format
    /// `[a-b]`. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_range: Option<String>,
    /// User data for the machines. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub userdata: Option<UserdataSpec>,
    /// Whether the machines run workloads.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub worker_role: bool,
}

/// The limits of a rolling update.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEMachinePoolRollingUpdate {
    /// The maximum number of machines that can exist above the desired number: an absolute number, or a
    /// percentage of the desired number, rounded up. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// The maximum number of machines that can be unavailable: an absolute number, or a percentage of the
    /// desired number, rounded down. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// Default values for all machine pools.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEMachinePoolDefaults {
    /// The maximum length of the machines' hostnames, from 10 to 63 characters. If 0, the maximum is 63.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 10, "maximum" = 63))]
    pub hostname_length_limit: i64,
}
