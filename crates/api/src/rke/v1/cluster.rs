//! RKECluster: the infrastructure provider's object for a cluster.

use super::common::{APIEndpoint, GenericCondition};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the RKECluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKECluster",
    plural = "rkeclusters",
    namespaced,
    doc = "The infrastructure of a K3s or RKE2 cluster.",
    status = "RKEClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    category = "cluster-api",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1"),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Endpoint", "type": "string", "jsonPath": ".spec.controlPlaneEndpoint.host"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RKEClusterSpec {
    /// The host and port at which the API server of the cluster is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<APIEndpoint>,
}

/// The observed state of the RKECluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEClusterStatus {
    /// The conditions of the RKECluster, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// Initialization steps that are complete. A step that is true remains true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEClusterInitializationStatus>,
    /// True after the infrastructure has been provisioned.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
}

/// Initialization steps that are complete. A step that is true remains true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RKEClusterInitializationStatus {
    /// True after the infrastructure has been provisioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}
