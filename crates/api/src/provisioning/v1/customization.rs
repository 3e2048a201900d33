//! Scheduling options of the agents in a cluster.

use crate::schema;
use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scheduling options of the webhook.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDeploymentCustomization {
    /// Tolerations that are added to the default tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::tolerations")]
    pub append_tolerations: Vec<Toleration>,
    /// The affinity that replaces the default affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::affinity")]
    pub override_affinity: Option<Affinity>,
    /// The resource requests and limits that replace the default ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resource_requirements")]
    pub override_resource_requirements: Option<ResourceRequirements>,
    /// The PodDisruptionBudget of the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// The number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub replica_count: Option<i32>,
}

/// Scheduling options of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentDeploymentCustomization {
    /// Tolerations that are added to the default tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::tolerations")]
    pub append_tolerations: Vec<Toleration>,
    /// The affinity that replaces the default affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::affinity")]
    pub override_affinity: Option<Affinity>,
    /// The resource requests and limits that replace the default ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resource_requirements")]
    pub override_resource_requirements: Option<ResourceRequirements>,
    /// The PriorityClass and the PodDisruptionBudget of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_customization: Option<AgentSchedulingCustomization>,
}

/// The PriorityClass and the PodDisruptionBudget of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSchedulingCustomization {
    /// The PodDisruptionBudget of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// The PriorityClass of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<PriorityClassSpec>,
}

/// The PriorityClass of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityClassSpec {
    /// Whether pods of the agent can preempt pods of lower priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    /// The priority.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = -1000000000, "maximum" = 1000000000))]
    pub value: i64,
}

/// The PodDisruptionBudget of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDisruptionBudgetSpec {
    /// The maximum number of pods that can be unavailable: an absolute number or a percentage.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub max_unavailable: String,
    /// The minimum number of pods that must be available: an absolute number or a percentage.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub min_available: String,
}
