//! CustomMachine: a machine that was created outside Drover and registered itself.

use super::cluster::RKEClusterInitializationStatus;
use super::common::{GenericCondition, MachineAddress};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the CustomMachine.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "CustomMachine",
    plural = "custommachines",
    namespaced,
    doc = "A machine that was created outside Drover and registered itself.",
    status = "CustomMachineStatus",
    derive = "PartialEq",
    derive = "Default",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1"),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"}"#,
    printcolumn = r#"{"name": "Machine", "type": "string", "jsonPath": ".metadata.ownerReferences[?(@.kind==\"Machine\")].name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Provider ID", "type": "string", "jsonPath": ".spec.providerID"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct CustomMachineSpec {
    /// The ID of the host. It equals `spec.providerID` of the Node.
    #[serde(
        rename = "providerID",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub provider_id: String,
}

/// The observed state of the CustomMachine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomMachineStatus {
    /// The addresses of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub addresses: Vec<MachineAddress>,
    /// The conditions of the CustomMachine, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// Initialization steps that are complete. A step that is true remains true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEClusterInitializationStatus>,
    /// Whether the provider ID of the machine is known.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
}
