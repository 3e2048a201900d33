//! How the agents in a cluster are scheduled.

use crate::schema;
use k8s_openapi::api::core::v1::{Affinity, ResourceRequirements, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the webhook is scheduled.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDeploymentCustomization {
    /// Adds tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::tolerations")]
    pub append_tolerations: Vec<Toleration>,
    /// Replaces the affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::affinity")]
    pub override_affinity: Option<Affinity>,
    /// Replaces resource requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resource_requirements")]
    pub override_resource_requirements: Option<ResourceRequirements>,
    /// Disruption budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// Number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub replica_count: Option<i32>,
}

/// How an agent is scheduled.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentDeploymentCustomization {
    /// Adds tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::tolerations")]
    pub append_tolerations: Vec<Toleration>,
    /// Replaces the affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::affinity")]
    pub override_affinity: Option<Affinity>,
    /// Replaces resource requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resource_requirements")]
    pub override_resource_requirements: Option<ResourceRequirements>,
    /// Priority and disruption budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_customization: Option<AgentSchedulingCustomization>,
}

/// Priority and disruption budget of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSchedulingCustomization {
    /// Disruption budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
    /// Priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<PriorityClassSpec>,
}

/// Priority of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityClassSpec {
    /// Whether other pods may be displaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    /// Value.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = -1000000000, "maximum" = 1000000000))]
    pub value: i64,
}

/// Disruption budget of an agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodDisruptionBudgetSpec {
    /// Machines that may be missing: a number, or a percentage rounded down.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub max_unavailable: String,
    /// Pods that must stay.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub min_available: String,
}
