//! `management.cattle.io/v3` Cluster: the management Cluster of a provisioning Cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::provisioning::v1::{AgentDeploymentCustomization, WebhookDeploymentCustomization};
use crate::rke::v1::{EnvVar, GenericCondition, LocalClusterAuthEndpoint};
use crate::schema;

/// The desired state of the management Cluster. Unknown fields are preserved, because Rancher publishes no
/// schema for this kind.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "Cluster",
    plural = "clusters",
    doc = "A downstream cluster as seen by the management plane. Its name is the cluster ID.",
    status = "ClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Display Name", "type": "string", "jsonPath": ".spec.displayName"}"#,
    printcolumn = r#"{"name": "Provider", "type": "string", "jsonPath": ".status.provider"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".status.info.kubernetesVersion"}"#,
    printcolumn = r#"{"name": "Nodes", "type": "integer", "jsonPath": ".status.info.nodeCount"}"#,
    printcolumn = r#"{"name": "Connected", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Connected\")].status"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterSpec {
    /// The name that is shown in user interfaces.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub display_name: String,
    /// The description that is shown in user interfaces.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub description: String,
    /// Whether this is the cluster in which the management plane runs.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub internal: bool,
    /// The desired image of the cluster agent.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub desired_agent_image: String,
    /// The desired image of the authentication agent.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub desired_auth_image: String,
    /// An image that overrides `desiredAgentImage`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_image_override: String,
    /// Environment variables of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    /// The name of the default template for the pod security admission configuration.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_pod_security_admission_configuration_template_name: String,
    /// The cluster role of members of new projects.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_cluster_role_for_project_members: String,
    /// Whether network policies isolate projects from each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_network_policy: Option<bool>,
    /// The authorized cluster endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    /// Scheduling options of the cluster agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// Scheduling options of the Fleet agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// Scheduling options of the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_deployment_customization: Option<WebhookDeploymentCustomization>,
    /// The configuration of an imported cluster. It is set on all clusters that no hosted driver created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_config: Option<ImportedConfig>,
    /// The Fleet workspace of the cluster, which is a namespace of the management cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub fleet_workspace_name: String,
    /// Fields of Rancher's type that Drover does not use. They are preserved unchanged.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: BTreeMap<String, Value>,
}

/// The configuration of an imported cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ImportedConfig {
    /// The kubeconfig of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kube_config: String,
    /// The registry from which system images are pulled.
    #[serde(
        rename = "privateRegistryURL",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub private_registry_url: String,
}

/// The observed state of the management Cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterStatus {
    /// The conditions of the cluster, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// The driver of the cluster: `imported`, `k3s`, `rke2`, `local` or the name of a hosted driver.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub driver: String,
    /// The Kubernetes distribution of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub provider: String,
    /// The URL of the cluster's API server. It is reached through the tunnel of the cluster agent.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub api_endpoint: String,
    /// The CA certificates of the cluster's API server: PEM, base64-encoded, as sent by the cluster agent.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub ca_cert: String,
    /// The token of the service account in the downstream cluster. It is empty after the token was moved to a
    /// Secret.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub service_account_token: String,
    /// The name of the Secret with the token of the service account in the downstream cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub service_account_token_secret: String,
    /// The environment variables with which the agents were last deployed.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub applied_agent_env_vars: Vec<EnvVar>,
    /// The total resources of the nodes.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub capacity: BTreeMap<String, Quantity>,
    /// The total resources of the nodes that are available to pods.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// The version that the cluster's API server reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub version: Option<Value>,
    /// The number of nodes.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub node_count: i64,
    /// The number of Linux worker nodes.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub linux_worker_count: i64,
    /// The number of Windows worker nodes.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub windows_worker_count: i64,
    /// Whether the condition `Ready` is copied from the control plane.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready_reconciling: bool,
    /// A summary of the cluster for user interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<ClusterInfo>,
    /// Fields of Rancher's type that Drover does not use. They are preserved unchanged.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: BTreeMap<String, Value>,
}

/// A summary of a cluster for user interfaces.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// The provider of the machines: the name of a machine driver, or `custom`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub machine_provider: String,
    /// The Kubernetes version of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    /// The number of machines.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub node_count: i64,
    /// The CPU architecture of the nodes, or `mixed`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub arch: String,
    /// A reference to the provisioning Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_reference")]
    pub provisioning_cluster_ref: Option<ObjectReference>,
}
