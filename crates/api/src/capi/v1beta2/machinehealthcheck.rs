//! MachineHealthCheck: when a Machine counts as broken, and what then.

use super::common::V1Beta1Condition;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineHealthCheck",
    plural = "machinehealthchecks",
    namespaced,
    doc = "Marks Machines that stay unhealthy, so that their owner replaces them.",
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
    /// When a Machine counts as unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<MachineHealthCheckChecks>,
    /// Name of the Cluster.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: String,
    /// What happens to unhealthy Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineHealthCheckRemediation>,
    /// Which Machines belong here.
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: LabelSelector,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckStatus {
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// Machines that are healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub current_healthy: Option<i32>,
    /// Status in the form of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineHealthCheckDeprecatedStatus>,
    /// Machines that are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub expected_machines: Option<i32>,
    /// Generation that the last complete pass has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// Machines that may still be remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub remediations_allowed: Option<i32>,
    /// Names of the Machines that are watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxItems" = 10000, "x-kubernetes-list-type" = "atomic", "items" = serde_json::json!({"maxLength": 253, "minLength": 1, "type": "string"})))]
    pub targets: Vec<String>,
}

/// Status in the form of older API versions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckDeprecatedStatus {
    /// Status in the form of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<MachineHealthCheckV1Beta1DeprecatedStatus>,
}

/// Status in the form of v1beta1.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckV1Beta1DeprecatedStatus {
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub conditions: Vec<V1Beta1Condition>,
}

/// What happens to unhealthy Machines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckRemediation {
    /// Template of the request that an external remediator acts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<MachineHealthCheckRemediationTemplateRef>,
    /// How many may be unhealthy for anything to happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_if: Option<MachineHealthCheckRemediationTriggerIf>,
}

/// How many Machines may be unhealthy for anything to happen.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckRemediationTriggerIf {
    /// Acts only while the number of unhealthy Machines is in `[a-b]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 32, "pattern" = r#"^\[[0-9]+-[0-9]+\]$"#))]
    pub unhealthy_in_range: Option<String>,
    /// Acts only while at most this many are unhealthy: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_less_than_or_equal_to: Option<IntOrString>,
}

/// Template of the request that an external remediator acts on.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineHealthCheckRemediationTemplateRef {
    /// API version of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 317, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[a-z]([-a-z0-9]*[a-z0-9])?$"#))]
    pub api_version: String,
    /// Kind of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
}

/// When a Machine counts as unhealthy.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineHealthCheckChecks {
    /// How long a Machine may take to get its Node; 0 means as long as it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub node_startup_timeout_seconds: Option<i32>,
    /// Machine conditions that make a Machine unhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic"))]
    pub unhealthy_machine_conditions: Vec<UnhealthyMachineCondition>,
    /// Node conditions that make a Machine unhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic"))]
    pub unhealthy_node_conditions: Vec<UnhealthyNodeCondition>,
}

/// A Node condition that, when it lasts, makes a Machine unhealthy.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyNodeCondition {
    /// True, False or Unknown.
    #[schemars(extend("minLength" = 1))]
    pub status: String,
    /// How long the condition must last.
    #[schemars(extend("minimum" = 0))]
    pub timeout_seconds: i32,
    /// Type.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1))]
    pub type_: String,
}

/// A Machine condition that, when it lasts, makes a Machine unhealthy.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyMachineCondition {
    /// True, False or Unknown.
    #[schemars(extend("enum" = serde_json::json!(["True", "False", "Unknown"])))]
    pub status: String,
    /// How long the condition must last.
    #[schemars(extend("minimum" = 0))]
    pub timeout_seconds: i32,
    /// Type.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1, "maxLength" = 316, "pattern" = r#"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"#, "x-kubernetes-validations" = serde_json::json!([{"message": "type must not be one of: Ready, Available, HealthCheckSucceeded, OwnerRemediated, ExternallyRemediated", "rule": "!(self in ['Ready','Available','HealthCheckSucceeded','OwnerRemediated','ExternallyRemediated'])"}])))]
    pub type_: String,
}
