//! MachineDeployment: rolls Machines from one template to the next.

use super::common::V1Beta1Condition;
use super::machineset::{MachineNamingSpec, MachineSetDeletionSpec, MachineTemplateSpec};
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "MachineDeployment",
    plural = "machinedeployments",
    namespaced,
    doc = "A number of Machines that are rolled from one template to the next.",
    status = "MachineDeploymentStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "md",
    category = "cluster-api",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Available", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas"}"#,
    printcolumn = r#"{"name": "Current", "type": "integer", "jsonPath": ".status.replicas"}"#,
    printcolumn = r#"{"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"}"#,
    printcolumn = r#"{"name": "Available", "type": "integer", "jsonPath": ".status.availableReplicas"}"#,
    printcolumn = r#"{"name": "Up-to-date", "type": "integer", "jsonPath": ".status.upToDateReplicas"}"#,
    printcolumn = r#"{"name": "Paused", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Paused\")].status", "priority": 10}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.template.spec.version"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentSpec {
    /// Name of the Cluster.
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub cluster_name: String,
    /// How things are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineSetDeletionSpec>,
    /// How Machines are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming: Option<MachineNamingSpec>,
    /// Holds all work on the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// What happens to unhealthy Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineDeploymentRemediationSpec>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// When and how Machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<MachineDeploymentRolloutSpec>,
    /// Which Machines belong here.
    #[schemars(schema_with = "schema::label_selector")]
    pub selector: LabelSelector,
    /// What each is made from.
    pub template: MachineTemplateSpec,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentStatus {
    /// Machines that are Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// Status in the form of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineDeploymentDeprecatedStatus>,
    /// Generation that the last complete pass has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// Where in its life the object is, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["ScalingUp", "ScalingDown", "Running", "Failed", "Unknown"])))]
    pub phase: Option<String>,
    /// Machines that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Which Machines belong here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 4096))]
    pub selector: Option<String>,
    /// Machines that are as the template says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
}

/// Status in the form of older API versions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentDeprecatedStatus {
    /// Status in the form of v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v1beta1: Option<MachineDeploymentV1Beta1DeprecatedStatus>,
}

/// Status in the form of v1beta1.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentV1Beta1DeprecatedStatus {
    /// Machines that are Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub conditions: Vec<V1Beta1Condition>,
    /// Machines that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines that are missing or not available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,
    /// Machines of the newest template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
}

/// When and how Machines are replaced.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentRolloutSpec {
    /// Replaces every Machine made before this time, once it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
    /// How Machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<MachineDeploymentRolloutStrategy>,
}

/// How Machines are replaced.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentRolloutStrategy {
    /// Limits of a rolling update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<MachineDeploymentRolloutStrategyRollingUpdate>,
    /// Type.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = serde_json::json!(["RollingUpdate", "OnDelete"])))]
    pub type_: String,
}

/// How many Machines may be added or missing during a rollout.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentRolloutStrategyRollingUpdate {
    /// Machines above the number asked for: a number, or a percentage rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Machines that may be missing: a number, or a percentage rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// How many Machines may be replaced at once for being unhealthy.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentRemediationSpec {
    /// Machines that may be replaced at once: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<IntOrString>,
}
