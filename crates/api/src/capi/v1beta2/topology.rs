//! Cluster topology (ClusterClass): the fields are in the CRD and are stored, but have no effect yet.

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

/// The topology of a cluster that is created from a ClusterClass.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// A reference to the ClusterClass.
    pub class_ref: ClusterClassRef,
    /// The topology of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlaneTopology>,
    /// The values of the variables of the ClusterClass.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 1000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub variables: Vec<ControlPlaneTopologyVariablesOverride>,
    /// The Kubernetes version of the cluster.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub version: String,
    /// The topology of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersTopology>,
}

/// The topology of the workers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct WorkersTopology {
    /// The MachineDeployments of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 2000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub machine_deployments: Vec<MachineDeploymentTopology>,
    /// The MachinePools of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 2000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub machine_pools: Vec<MachinePoolTopology>,
}

/// The topology of a MachinePool.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachinePoolTopology {
    /// The name of the MachinePool class in the ClusterClass.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub class: String,
    /// Timeouts for the deletion of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionSpec>,
    /// The failure domains in which Machines are created.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic", "items" = serde_json::json!({"maxLength": 256, "minLength": 1, "type": "string"})))]
    pub failure_domains: Vec<String>,
    /// The labels and annotations of the MachinePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// The number of seconds for which a Machine must be Ready before it is Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub min_ready_seconds: Option<i32>,
    /// The name of the topology. It must be unique in the cluster.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
    /// The desired number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Taints for the Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    /// Values of variables for this MachinePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<ControlPlaneTopologyVariables>,
}

/// The topology of a MachineDeployment.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDeploymentTopology {
    /// The name of the MachineDeployment class in the ClusterClass.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub class: String,
    /// Timeouts and order for the deletion of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeploymentTopologyDeletion>,
    /// The failure domain in which Machines are created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub failure_domain: Option<String>,
    /// The MachineHealthCheck of the MachineDeployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<MachineDeploymentTopologyHealthCheck>,
    /// The labels and annotations of the MachineDeployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// The number of seconds for which a Machine must be Ready before it is Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub min_ready_seconds: Option<i32>,
    /// The name of the topology. It must be unique in the cluster.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
    /// Additional conditions that a Machine must meet to be Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub readiness_gates: Vec<MachineReadinessGate>,
    /// The desired number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// When and how Machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<MachineDeploymentRolloutSpec>,
    /// Taints for the Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    /// Values of variables for this MachineDeployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<ControlPlaneTopologyVariables>,
}

/// The MachineHealthCheck of a MachineDeployment.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentTopologyHealthCheck {
    /// The checks that determine whether a Machine is unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<MachineHealthCheckChecks>,
    /// Whether a MachineHealthCheck is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How unhealthy Machines are remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineDeploymentTopologyHealthCheckRemediation>,
}

/// How unhealthy Machines of a MachineDeployment are remediated.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentTopologyHealthCheckRemediation {
    /// The maximum number of unhealthy Machines that are replaced at the same time: an absolute number or a
    /// percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<IntOrString>,
    /// A reference to the template of the requests to an external remediation controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<MachineHealthCheckRemediationTemplateRef>,
    /// Limits on the number of unhealthy Machines within which Machines are remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_if: Option<MachineHealthCheckRemediationTriggerIf>,
}

/// Timeouts and order for the deletion of Machines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeploymentTopologyDeletion {
    /// The number of seconds for which deleting the Node is attempted; 0 means no time limit.
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
    /// The order of deletion: Random, Newest or Oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Random", "Newest", "Oldest"])))]
    pub order: Option<String>,
}

/// The topology of the control plane.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopology {
    /// Timeouts for the deletion of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionSpec>,
    /// The MachineHealthCheck of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<ControlPlaneTopologyHealthCheck>,
    /// The labels and annotations of the control plane object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ObjectMeta>,
    /// Additional conditions that a Machine must meet to be Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub readiness_gates: Vec<MachineReadinessGate>,
    /// The desired number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// When Machines are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<ControlPlaneTopologyRollout>,
    /// Taints for the Nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["key", "effect"])))]
    pub taints: Vec<MachineTaint>,
    /// Values of variables for the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<ControlPlaneTopologyVariables>,
}

/// Values of variables for a part of the topology.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopologyVariables {
    /// Values that override those of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 1000, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub overrides: Vec<ControlPlaneTopologyVariablesOverride>,
}

/// The value of a variable.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneTopologyVariablesOverride {
    /// The name of the variable.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub name: String,
    /// The value of the variable, as JSON.
    #[schemars(schema_with = "schema::any")]
    pub value: Value,
}

/// When Machines are replaced.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopologyRollout {
    /// The time of a rollout. At this time, all Machines that were created earlier are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
}

/// The MachineHealthCheck of the control plane.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ControlPlaneTopologyHealthCheck {
    /// The checks that determine whether a Machine is unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<MachineHealthCheckChecks>,
    /// Whether a MachineHealthCheck is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How unhealthy Machines are remediated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation: Option<MachineHealthCheckRemediation>,
}

/// A reference to a ClusterClass.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterClassRef {
    /// The name of the ClusterClass.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
    /// The namespace of the ClusterClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
}
