//! MachineHealthCheck: when a Machine is unhealthy, and how it is remediated.

use super::common::V1Beta1Condition;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the MachineHealthCheck.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineHealthCheck",
    plural = "machinehealthchecks",
    namespaced,
    doc = "A check that marks unhealthy Machines for replacement by their owner. Not implemented yet: MachineHealthChecks are stored but have no effect.",
    status = "MachineHealthCheckStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "mhc",
    shortname = "mhcs",
    category = "cluster-api",
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Replicas", "type": "integer", "jsonPath": ".status.expectedMachines"}"#,
    printcolumn = r#"{"name": "Healthy", "type": "integer", "jsonPath": ".status.currentHealthy"}"#,
    printcolumn = r#"{"name": "Paused", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Paused\")].status", "priority": 10}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckSpec {
    /// The checks that determine whether a Machine is unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<MachineHealthCheckChecks>,
    /// The name of the Cluster that the MachineHealthCheck belongs to.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: String,
    /// How unhealthy Machines are remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineHealthCheckRemediation>,
    /// The label selector for the Machines that are checked.
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: LabelSelector,
}

/// The observed state of the MachineHealthCheck.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckStatus {
    /// The conditions of the MachineHealthCheck, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// The number of healthy Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub current_healthy: Option<i32>,
    /// Status fields of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineHealthCheckDeprecatedStatus>,
    /// The number of Machines that are checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub expected_machines: Option<i32>,
    /// The most recent generation of the object that was reconciled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// The number of Machines that can still be remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub remediations_allowed: Option<i32>,
    /// The names of the Machines that are checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxItems" = 10000, "x-kubernetes-list-type" = "atomic", "items" = serde_json::json!({"maxLength": 253, "minLength": 1, "type": "string"})))]
    pub targets: Vec<String>,
}

/// Status fields of older API versions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckDeprecatedStatus {
    /// Status fields of API version v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<MachineHealthCheckV1Beta1DeprecatedStatus>,
}

/// Status fields of API version v1beta1.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckV1Beta1DeprecatedStatus {
    /// The conditions in the format of v1beta1, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub conditions: Vec<V1Beta1Condition>,
}

/// How unhealthy Machines are remediated.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckRemediation {
    /// A reference to the template of the requests to an external remediation controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<MachineHealthCheckRemediationTemplateRef>,
    /// Limits on the number of unhealthy Machines within which Machines are remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_if: Option<MachineHealthCheckRemediationTriggerIf>,
}

/// Limits on the number of unhealthy Machines within which Machines are remediated.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckRemediationTriggerIf {
    /// The range of the number of unhealthy Machines within which Machines are remediated, in the format
    /// `[a-b]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 32, "pattern" = r#"^\[[0-9]+-[0-9]+\]$"#))]
    pub unhealthy_in_range: Option<String>,
    /// The maximum number of unhealthy Machines up to which Machines are remediated: an absolute number or a
    /// percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_less_than_or_equal_to: Option<IntOrString>,
}

/// A reference to the template of the requests to an external remediation controller.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckRemediationTemplateRef {
    /// The API version of the template.
    #[schemars(extend("minLength" = 1, "maxLength" = 317, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[a-z]([-a-z0-9]*[a-z0-9])?$"#))]
    pub api_version: String,
    /// The kind of the template.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    /// The name of the template.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
}

/// The checks that determine whether a Machine is unhealthy.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckChecks {
    /// The number of seconds within which a new Machine must have a Node. Defaults to 600; 0 means no time
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_startup_timeout_seconds: Option<i32>,
    /// The conditions of a Machine that make it unhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic"))]
    pub unhealthy_machine_conditions: Vec<UnhealthyMachineCondition>,
    /// The conditions of a Node that make its Machine unhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic"))]
    pub unhealthy_node_conditions: Vec<UnhealthyNodeCondition>,
}

/// A condition of a Node that makes its Machine unhealthy if it lasts longer than a timeout.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyNodeCondition {
    /// The status of the condition: True, False or Unknown.
    #[schemars(extend("minLength" = 1))]
    pub status: String,
    /// The number of seconds for which the condition must have this status.
    #[schemars(extend("minimum" = 0))]
    pub timeout_seconds: i32,
    /// The type of the condition.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1))]
    pub type_: String,
}

/// A condition of a Machine that makes it unhealthy if it lasts longer than a timeout.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyMachineCondition {
    /// The status of the condition: True, False or Unknown.
    #[schemars(extend("enum" = serde_json::json!(["True", "False", "Unknown"])))]
    pub status: String,
    /// The number of seconds for which the condition must have this status.
    #[schemars(extend("minimum" = 0))]
    pub timeout_seconds: i32,
    /// The type of the condition.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1, "maxLength" = 316, "pattern" = r#"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"#, "x-kubernetes-validations" = serde_json::json!([{"message": "type must not be one of: Ready, Available, HealthCheckSucceeded, OwnerRemediated, ExternallyRemediated", "rule": "!(self in ['Ready','Available','HealthCheckSucceeded','OwnerRemediated','ExternallyRemediated'])"}])))]
    pub type_: String,
}
