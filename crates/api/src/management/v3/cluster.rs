//! `management.cattle.io/v3` Cluster: the management twin of a provisioning Cluster.

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

/// What the management plane should know and do about a cluster.
///
/// Rancher publishes no schema for this kind, so fields unknown here are kept as they are.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "Cluster",
    plural = "clusters",
    doc = "A downstream cluster as the management plane sees it; its name is the cluster id.",
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
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub display_name: String,
    /// Text shown to people.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub description: String,
    /// True for the cluster that the management plane itself runs in.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub internal: bool,
    /// Image of the cluster agent that should run.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub desired_agent_image: String,
    /// Image of the authentication agent that should run.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub desired_auth_image: String,
    /// Image that replaces `desiredAgentImage`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_image_override: String,
    /// Environment of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    /// Template of the default pod security admission configuration.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_pod_security_admission_configuration_template_name: String,
    /// Role given to members of new projects.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_cluster_role_for_project_members: String,
    /// Whether projects are isolated from each other by network policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_network_policy: Option<bool>,
    /// Direct access to the cluster's own API endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    /// Scheduling of the cluster agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// Scheduling of the fleet agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// Scheduling of the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_deployment_customization: Option<WebhookDeploymentCustomization>,
    /// Present when the cluster was not created by a hosted driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_config: Option<ImportedConfig>,
    /// Fleet workspace (a namespace of the management cluster).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub fleet_workspace_name: String,
    /// Fields of Rancher's type that Drover does not use, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: BTreeMap<String, Value>,
}

/// How an imported cluster is reached.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ImportedConfig {
    /// Kubeconfig of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kube_config: String,
    /// Registry that system images are pulled from.
    #[serde(
        rename = "privateRegistryURL",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub private_registry_url: String,
}

/// What the management plane has seen of a cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClusterStatus {
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// `imported`, `k3s`, `rke2`, `local` or the name of a hosted driver.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub driver: String,
    /// Distribution found in the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub provider: String,
    /// URL of the cluster's API, reached through the tunnel.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub api_endpoint: String,
    /// CA of the cluster's API: base64 of PEM, as the agent sent it.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub ca_cert: String,
    /// Token of the downstream service account; emptied once it lives in a Secret.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub service_account_token: String,
    /// Name of the Secret that holds the downstream service account's token.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub service_account_token_secret: String,
    /// Agent environment that has been rolled out.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub applied_agent_env_vars: Vec<EnvVar>,
    /// Sum of what the nodes have.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Sum of what the nodes offer to pods.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Version that the cluster's API reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub version: Option<Value>,
    /// Number of nodes.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub node_count: i64,
    /// Number of Linux workers.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub linux_worker_count: i64,
    /// Number of Windows workers.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub windows_worker_count: i64,
    /// True while `Ready` is copied from the control plane.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready_reconciling: bool,
    /// Summary for dashboards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<ClusterInfo>,
    /// Fields of Rancher's type that Drover does not use, kept as they came.
    #[serde(flatten)]
    #[schemars(skip)]
    pub other: BTreeMap<String, Value>,
}

/// Summary of a cluster for dashboards.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Where machines come from: a driver's name, or `custom`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub machine_provider: String,
    /// Kubernetes version of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    /// Number of machines.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub node_count: i64,
    /// Architecture of the nodes, or `mixed`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub arch: String,
    /// The provisioning Cluster this is the twin of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_reference")]
    pub provisioning_cluster_ref: Option<ObjectReference>,
}
