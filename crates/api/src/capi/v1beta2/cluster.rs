//! Cluster: one workload cluster and the objects that provide it.

use std::collections::BTreeMap;

use super::common::{APIEndpoint, ContractVersionedObjectReference};
use super::machine::{MachineDeprecatedStatus, MachineReadinessGate};
use super::topology::Topology;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    plural = "clusters",
    namespaced,
    doc = "A Kubernetes cluster and the objects that provide its infrastructure and control plane.",
    status = "ClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "cl",
    category = "cluster-api",
    printcolumn = r#"{"name": "ClusterClass", "type": "string", "jsonPath": ".spec.topology.classRef.name"}"#,
    printcolumn = r#"{"name": "Available", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name": "CP Desired", "type": "integer", "jsonPath": ".status.controlPlane.desiredReplicas"}"#,
    printcolumn = r#"{"name": "CP Current", "type": "integer", "jsonPath": ".status.controlPlane.replicas", "priority": 10}"#,
    printcolumn = r#"{"name": "CP Ready", "type": "integer", "jsonPath": ".status.controlPlane.readyReplicas", "priority": 10}"#,
    printcolumn = r#"{"name": "CP Available", "type": "integer", "jsonPath": ".status.controlPlane.availableReplicas"}"#,
    printcolumn = r#"{"name": "CP Up-to-date", "type": "integer", "jsonPath": ".status.controlPlane.upToDateReplicas"}"#,
    printcolumn = r#"{"name": "W Desired", "type": "integer", "jsonPath": ".status.workers.desiredReplicas"}"#,
    printcolumn = r#"{"name": "W Current", "type": "integer", "jsonPath": ".status.workers.replicas", "priority": 10}"#,
    printcolumn = r#"{"name": "W Ready", "type": "integer", "jsonPath": ".status.workers.readyReplicas", "priority": 10}"#,
    printcolumn = r#"{"name": "W Available", "type": "integer", "jsonPath": ".status.workers.availableReplicas"}"#,
    printcolumn = r#"{"name": "W Up-to-date", "type": "integer", "jsonPath": ".status.workers.upToDateReplicas"}"#,
    printcolumn = r#"{"name": "Paused", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Paused\")].status", "priority": 10}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.topology.version"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterSpec {
    /// Further conditions that must hold before the Cluster is Available.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub availability_gates: Vec<MachineReadinessGate>,
    /// Networks of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<ClusterNetwork>,
    /// Where the control plane answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<APIEndpoint>,
    /// Object that stands for the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref: Option<ContractVersionedObjectReference>,
    /// Object that stands for the infrastructure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ContractVersionedObjectReference>,
    /// Holds all work on the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Makes the cluster from a ClusterClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterStatus {
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// The control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ReplicaCounters>,
    /// Status in the form of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineDeprecatedStatus>,
    /// Failure domains of the infrastructure.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub failure_domains: Vec<FailureDomain>,
    /// Steps that happen once; each stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ClusterInitializationStatus>,
    /// Generation that the last complete pass has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// Where in its life the object is, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Pending", "Provisioning", "Provisioned", "Deleting", "Failed", "Unknown"])))]
    pub phase: Option<String>,
    /// The workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<ReplicaCounters>,
}

/// Steps that happen once; each stays true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterInitializationStatus {
    /// True once the control plane answers for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
    /// True once the infrastructure is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
}

/// A part of the infrastructure that fails on its own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Further facts.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub attributes: BTreeMap<String, String>,
    /// The control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<bool>,
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub name: String,
}

/// Numbers of Machines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaCounters {
    /// Machines that are Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines that are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// Machines that are Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines that are as the template says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
}

/// Networks of the cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterNetwork {
    /// Port of the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub api_server_port: Option<i32>,
    /// Networks of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<NetworkRanges>,
    /// DNS domain of services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub service_domain: Option<String>,
    /// Networks of services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<NetworkRanges>,
}

/// A list of CIDRs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRanges {
    /// The CIDRs.
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic", "items" = serde_json::json!({"maxLength": 43, "minLength": 1, "type": "string"})))]
    pub cidr_blocks: Vec<String>,
}
