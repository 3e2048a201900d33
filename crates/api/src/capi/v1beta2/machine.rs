//! Machine: a host that is, or becomes, a Node.

use super::common::{ContractVersionedObjectReference, V1Beta1Condition};
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the Machine.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    plural = "machines",
    namespaced,
    doc = "A host that is, or becomes, a Node of a cluster.",
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
    /// The source of the bootstrap data, which configures the host as a Node.
    pub bootstrap: Bootstrap,
    /// The name of the Cluster that the Machine belongs to.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: String,
    /// Timeouts for the deletion of the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionSpec>,
    /// The failure domain in which the host is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    /// A reference to the object that represents the host at its infrastructure provider.
    pub infrastructure_ref: ContractVersionedObjectReference,
    /// The number of seconds for which the Machine must be Ready before it is Available. If unset or 0, the
    /// Machine is Available as soon as it is Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub min_ready_seconds: Option<i32>,
    /// The ID of the host at its infrastructure provider. It equals `spec.providerID` of the Node.
    #[serde(rename = "providerID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 512))]
    pub provider_id: Option<String>,
    /// Additional conditions that the Machine must meet to be Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub readiness_gates: Vec<MachineReadinessGate>,
    /// Taints for the Node. Not implemented yet: the value is stored, but taints are not copied to Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    /// The Kubernetes version of the Node. A missing prefix `v` is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub version: Option<String>,
}

/// The observed state of the Machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineStatus {
    /// The addresses of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxItems" = 256, "x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<MachineAddress>,
    /// The time at which the certificates of the host expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_expiry_date: Option<Time>,
    /// The conditions of the Machine, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// The times at which the steps of the deletion started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionStatus>,
    /// Status fields of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineDeprecatedStatus>,
    /// The failure domain in which the host was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    /// Initialization steps that are complete. A step that is true remains true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<MachineInitializationStatus>,
    /// The time at which the phase last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// System information that the Node reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeSystemInfo>,
    /// A reference to the Node of the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<MachineNodeReference>,
    /// The most recent generation of the object that was reconciled without an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// The current phase of the Machine, for example Provisioning, Running or Deleting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Pending", "Provisioning", "Provisioned", "Running", "Updating", "Deleting", "Deleted", "Failed", "Unknown"])))]
    pub phase: Option<String>,
}

/// The times at which the steps of a deletion started.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeletionStatus {
    /// The time at which draining the Node started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_drain_start_time: Option<Time>,
    /// The time at which waiting for volumes to be detached started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_node_volume_detach_start_time: Option<Time>,
}

/// A reference to the Node of a Machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineNodeReference {
    /// The name of the Node.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
}

/// System information that a Node reports.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSystemInfo {
    /// The CPU architecture.
    pub architecture: String,
    /// The boot ID of the host, which changes at every boot.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// The name and version of the container runtime.
    pub container_runtime_version: String,
    /// The version of the kernel.
    pub kernel_version: String,
    /// The version of kube-proxy.
    pub kube_proxy_version: String,
    /// The version of the kubelet.
    pub kubelet_version: String,
    /// The machine ID of the host.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// The operating system, for example linux.
    pub operating_system: String,
    /// The name and version of the operating system image.
    pub os_image: String,
    /// Information about the swap space of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<NodeSwapStatus>,
    /// The system UUID of the host.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}

/// Information about the swap space of a Node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSwapStatus {
    /// The size of the swap space, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
}

/// Initialization steps that are complete. A step that is true remains true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineInitializationStatus {
    /// True after the bootstrap provider has created the Secret with the bootstrap data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
    /// True after the infrastructure provider has finished provisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
}

/// Status fields of older API versions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeprecatedStatus {
    /// Status fields of API version v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<MachineV1Beta1DeprecatedStatus>,
}

/// Status fields of API version v1beta1.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineV1Beta1DeprecatedStatus {
    /// The conditions in the format of v1beta1, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub conditions: Vec<V1Beta1Condition>,
    /// A human-readable description of a permanent failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 10240))]
    pub failure_message: Option<String>,
    /// The reason for a permanent failure, as one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
}

/// An address of a host.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineAddress {
    /// The host name or IP address.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub address: String,
    /// The type of the address: Hostname, ExternalIP, InternalIP, ExternalDNS or InternalDNS.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = serde_json::json!(["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"])))]
    pub type_: String,
}

/// A taint for the Node of a Machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineTaint {
    /// The effect of the taint: NoSchedule, PreferNoSchedule or NoExecute.
    #[schemars(extend("enum" = serde_json::json!(["NoSchedule", "PreferNoSchedule", "NoExecute"])))]
    pub effect: String,
    /// The key of the taint.
    #[schemars(extend("minLength" = 1, "maxLength" = 317, "pattern" = r#"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"#))]
    pub key: String,
    /// When the taint is added to the Node: Always or OnInitialization.
    #[schemars(extend("enum" = serde_json::json!(["Always", "OnInitialization"])))]
    pub propagation: String,
    /// The value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"))]
    pub value: Option<String>,
}

/// An additional condition that an object must meet.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineReadinessGate {
    /// The type of the condition.
    #[schemars(extend("minLength" = 1, "maxLength" = 316, "pattern" = r#"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"#))]
    pub condition_type: String,
    /// The polarity of the condition: Positive if it must be True, Negative if it must be False. Defaults to
    /// Positive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Positive", "Negative"])))]
    pub polarity: Option<String>,
}

/// Timeouts for the deletion of a Machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeletionSpec {
    /// The number of seconds for which deleting the Node is attempted. Defaults to 10; 0 means no time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_deletion_timeout_seconds: Option<i32>,
    /// The number of seconds for which the Node is drained. If unset or 0, there is no time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_drain_timeout_seconds: Option<i32>,
    /// The number of seconds to wait for volumes to be detached from the Node. If unset or 0, there is no
    /// time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_volume_detach_timeout_seconds: Option<i32>,
}

/// The source of the bootstrap data of a Machine: an object that generates it, or a Secret that contains it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {
    /// A reference to the object that generates the bootstrap data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<ContractVersionedObjectReference>,
    /// The name of the Secret that contains the bootstrap data under the key `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 0, "maxLength" = 253))]
    pub data_secret_name: Option<String>,
}
