//! Machine: one host that is or becomes a Node.

use super::common::{ContractVersionedObjectReference, V1Beta1Condition};
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    plural = "machines",
    namespaced,
    doc = "One host that is or becomes a Node of a cluster.",
    status = "MachineStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "ma",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Node Name", "type": "string", "jsonPath": ".status.nodeRef.name"}"#,
    printcolumn = r#"{"name": "Provider ID", "type": "string", "jsonPath": ".spec.providerID", "priority": 10}"#,
    printcolumn = r#"{"name": "Failure domain", "type": "string", "jsonPath": ".status.failureDomain"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Available", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name": "Up-to-date", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"UpToDate\")].status"}"#,
    printcolumn = r#"{"name": "Internal-IP", "type": "string", "jsonPath": ".status.addresses[?(@.type==\"InternalIP\")].address", "priority": 10}"#,
    printcolumn = r#"{"name": "External-IP", "type": "string", "jsonPath": ".status.addresses[?(@.type==\"ExternalIP\")].address", "priority": 10}"#,
    printcolumn = r#"{"name": "OS-Image", "type": "string", "jsonPath": ".status.nodeInfo.osImage", "priority": 10}"#,
    printcolumn = r#"{"name": "Paused", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Paused\")].status", "priority": 10}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.version"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Where the bootstrap data comes from.
    pub bootstrap: Bootstrap,
    /// Name of the Cluster.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: String,
    /// How things are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionSpec>,
    /// Failure domain the host is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    /// Object that stands for the infrastructure.
    pub infrastructure_ref: ContractVersionedObjectReference,
    /// Seconds a Machine must stay Ready before it is Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub min_ready_seconds: Option<i32>,
    /// The infrastructure's name of the host, equal to the Node's `spec.providerID`.
    #[serde(rename = "providerID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 512))]
    pub provider_id: Option<String>,
    /// Further conditions that must hold before a Machine is Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub readiness_gates: Vec<MachineReadinessGate>,
    /// Taints of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    /// Kubernetes version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub version: Option<String>,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineStatus {
    /// Addresses of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<MachineAddress>,
    /// When the machine's certificates expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_date: Option<Time>,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// How things are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionStatus>,
    /// Status in the form of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineDeprecatedStatus>,
    /// Failure domain the host is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    /// Steps that happen once; each stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<MachineInitializationStatus>,
    /// When the phase changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// What the Node says about its system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeSystemInfo>,
    /// The Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<MachineNodeReference>,
    /// Generation that the last complete pass has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// Where in its life the object is, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Pending", "Provisioning", "Provisioned", "Running", "Updating", "Deleting", "Deleted", "Failed", "Unknown"])))]
    pub phase: Option<String>,
}

/// When the steps of a deletion began.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeletionStatus {
    /// When draining began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_start_time: Option<Time>,
    /// When waiting for volumes began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_node_volume_detach_start_time: Option<Time>,
}

/// The Node of a Machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineNodeReference {
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
}

/// What the Node says about its system.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSystemInfo {
    pub architecture: String,
    #[serde(rename = "bootID")]
    pub boot_id: String,
    pub container_runtime_version: String,
    pub kernel_version: String,
    pub kube_proxy_version: String,
    pub kubelet_version: String,
    #[serde(rename = "machineID")]
    pub machine_id: String,
    pub operating_system: String,
    pub os_image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<NodeSwapStatus>,
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}

/// Swap of the Node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSwapStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
}

/// Steps that happen once; each stays true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineInitializationStatus {
    /// True once the bootstrap data exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
    /// True once the infrastructure is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
}

/// Status in the form of older API versions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeprecatedStatus {
    /// Status in the form of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<MachineV1Beta1DeprecatedStatus>,
}

/// Status in the form of v1beta1.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineV1Beta1DeprecatedStatus {
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub conditions: Vec<V1Beta1Condition>,
    /// What went wrong for good, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 10240))]
    pub failure_message: Option<String>,
    /// What went wrong for good, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
}

/// An address of a machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineAddress {
    /// The address.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub address: String,
    /// Type.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = serde_json::json!(["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"])))]
    pub type_: String,
}

/// A taint of the Machine's Node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineTaint {
    /// What the taint does: NoSchedule, PreferNoSchedule or NoExecute.
    #[schemars(extend("enum" = serde_json::json!(["NoSchedule", "PreferNoSchedule", "NoExecute"])))]
    pub effect: String,
    /// Key.
    #[schemars(extend("minLength" = 1, "maxLength" = 317, "pattern" = r#"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"#))]
    pub key: String,
    /// When the taint is set: Always or OnInitialization.
    #[schemars(extend("enum" = serde_json::json!(["Always", "OnInitialization"])))]
    pub propagation: String,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"))]
    pub value: Option<String>,
}

/// A further condition that must hold before a Machine is Ready.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineReadinessGate {
    /// Type of the condition.
    #[schemars(extend("minLength" = 1, "maxLength" = 316, "pattern" = r#"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"#))]
    pub condition_type: String,
    /// Whether True is good (Positive) or bad (Negative).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Positive", "Negative"])))]
    pub polarity: Option<String>,
}

/// How long each step of a deletion may take.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeletionSpec {
    /// How long removing the Node may be tried; 0 means forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_deletion_timeout_seconds: Option<i32>,
    /// How long a drain may take; unset or 0 means as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_drain_timeout_seconds: Option<i32>,
    /// How long detaching volumes may take; unset or 0 means as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_volume_detach_timeout_seconds: Option<i32>,
}

/// Where a machine's bootstrap data comes from: an object that makes it, or a Secret that has it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// Object that makes the bootstrap data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<ContractVersionedObjectReference>,
    /// Secret that holds the bootstrap data under the key `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 0, "maxLength" = 253))]
    pub data_secret_name: Option<String>,
}
