//! Cluster topology (ClusterClass): published and stored, so that nothing is lost; not yet acted on.

use super::machine::{MachineDeletionSpec, MachineReadinessGate, MachineTaint};
use super::machinedeployment::MachineDeploymentRolloutSpec;
use super::machinehealthcheck::{
    MachineHealthCheckChecks, MachineHealthCheckRemediation, MachineHealthCheckRemediationTemplateRef,
    MachineHealthCheckRemediationTriggerIf,
};
use super::machineset::ObjectMeta;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    pub class_ref: ClusterClassRef,
    /// The control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlaneTopology>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 1000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub variables: Vec<ControlPlaneTopologyVariablesOverride>,
    /// Kubernetes version.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub version: String,
    /// The workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersTopology>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct WorkersTopology {
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 2000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub machine_deployments: Vec<MachineDeploymentTopology>,
    /// The pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 2000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub machine_pools: Vec<MachinePoolTopology>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachinePoolTopology {
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub class: String,
    /// How things are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionSpec>,
    /// Failure domains of the infrastructure.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic", "items" = serde_json::json!({"maxLength": 256, "minLength": 1, "type": "string"})))]
    pub failure_domains: Vec<String>,
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// Seconds a Machine must stay Ready before it is Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Taints of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<ControlPlaneTopologyVariables>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentTopology {
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub class: String,
    /// How things are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeploymentTopologyDeletion>,
    /// Failure domain the host is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<MachineDeploymentTopologyHealthCheck>,
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// Seconds a Machine must stay Ready before it is Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
    /// Further conditions that must hold before a Machine is Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub readiness_gates: Vec<MachineReadinessGate>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// When and how Machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<MachineDeploymentRolloutSpec>,
    /// Taints of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<ControlPlaneTopologyVariables>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentTopologyHealthCheck {
    /// When a Machine counts as unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<MachineHealthCheckChecks>,
    /// Switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// What happens to unhealthy Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineDeploymentTopologyHealthCheckRemediation>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentTopologyHealthCheckRemediation {
    /// Machines that may be replaced at once: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<IntOrString>,
    /// Template of the request that an external remediator acts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<MachineHealthCheckRemediationTemplateRef>,
    /// How many may be unhealthy for anything to happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_if: Option<MachineHealthCheckRemediationTriggerIf>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentTopologyDeletion {
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
    /// Which Machine goes first: Random, Newest or Oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Random", "Newest", "Oldest"])))]
    pub order: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopology {
    /// How things are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<ControlPlaneTopologyHealthCheck>,
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// Further conditions that must hold before a Machine is Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub readiness_gates: Vec<MachineReadinessGate>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// When and how Machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<ControlPlaneTopologyRollout>,
    /// Taints of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<ControlPlaneTopologyVariables>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopologyVariables {
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 1000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub overrides: Vec<ControlPlaneTopologyVariablesOverride>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneTopologyVariablesOverride {
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub name: String,
    /// Value.
    #[schemars(schema_with = "schema::any")]
    pub value: Value,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopologyRollout {
    /// Replaces every Machine made before this time, once it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopologyHealthCheck {
    /// When a Machine counts as unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<MachineHealthCheckChecks>,
    /// Switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// What happens to unhealthy Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineHealthCheckRemediation>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterClassRef {
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
}
