//! Cluster: a workload cluster and references to the objects that provide it.

use std::collections::BTreeMap;

use super::common::{APIEndpoint, ContractVersionedObjectReference};
use super::machine::{MachineDeprecatedStatus, MachineReadinessGate};
use super::topology::Topology;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the Cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    plural = "clusters",
    namespaced,
    doc = "A Kubernetes cluster, with references to the objects that provide its infrastructure and its control plane.",
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
    /// Additional conditions that the Cluster must meet to be Available.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 32, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["conditionType"])))]
    pub availability_gates: Vec<MachineReadinessGate>,
    /// The network configuration of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<ClusterNetwork>,
    /// The host and port at which the API server of the cluster is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<APIEndpoint>,
    /// A reference to the object that represents the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_ref: Option<ContractVersionedObjectReference>,
    /// A reference to the object that represents the infrastructure of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ContractVersionedObjectReference>,
    /// Whether reconciliation of the Cluster and of its objects is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// The topology of a cluster that is created from a ClusterClass. Not implemented yet: the value is
    /// stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
}

/// The observed state of the Cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterStatus {
    /// The conditions of the Cluster, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(schema_with = "schema::conditions", extend("maxItems" = 32))]
    pub conditions: Vec<Condition>,
    /// The numbers of control plane Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ReplicaCounters>,
    /// Status fields of older API versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<MachineDeprecatedStatus>,
    /// The failure domains that the infrastructure provider reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["name"])))]
    pub failure_domains: Vec<FailureDomain>,
    /// Initialization steps that are complete. A step that is true remains true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ClusterInitializationStatus>,
    /// The most recent generation of the object that was reconciled without an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub observed_generation: Option<i64>,
    /// The current phase of the Cluster: Pending, Provisioning, Provisioned, Deleting, Failed or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = serde_json::json!(["Pending", "Provisioning", "Provisioned", "Deleting", "Failed", "Unknown"])))]
    pub phase: Option<String>,
    /// The numbers of worker Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<ReplicaCounters>,
}

/// Initialization steps that are complete. A step that is true remains true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterInitializationStatus {
    /// True after the API server of the control plane has become reachable for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
    /// True after the infrastructure provider has finished provisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
}

/// A failure domain of the infrastructure.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Additional properties of the failure domain.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub attributes: BTreeMap<String, String>,
    /// Whether the failure domain is suitable for control plane Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<bool>,
    /// The name of the failure domain.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub name: String,
}

/// Numbers of Machines by state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaCounters {
    /// The number of Machines whose condition Available is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// The desired number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// The number of Machines whose condition Ready is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// The total number of Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The number of Machines whose condition UpToDate is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
}

/// The network configuration of a cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ClusterNetwork {
    /// The port of the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub api_server_port: Option<i32>,
    /// The network ranges from which pods get their addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<NetworkRanges>,
    /// The DNS domain of Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub service_domain: Option<String>,
    /// The network ranges from which Services get their addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<NetworkRanges>,
}

/// A list of network ranges.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRanges {
    /// The network ranges, in CIDR notation.
    #[schemars(extend("minItems" = 1, "maxItems" = 100, "x-kubernetes-list-type" = "atomic", "items" = serde_json::json!({"maxLength": 43, "minLength": 1, "type": "string"})))]
    pub cidr_blocks: Vec<String>,
}
