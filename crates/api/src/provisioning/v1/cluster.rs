//! Cluster: what a person asks for.

use super::customization::{AgentDeploymentCustomization, WebhookDeploymentCustomization};
use super::rke_config::RKEConfig;
use crate::rke::v1::{EnvVar, GenericCondition, LocalClusterAuthEndpoint};
use crate::wait::Wait;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "provisioning.cattle.io",
    version = "v1",
    kind = "Cluster",
    plural = "clusters",
    namespaced,
    doc = "A cluster that a person asks for: pools of machines, a version and its configuration.",
    status = "ClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    category = "provisioning",
    label("auth.cattle.io/cluster-indexed", "true"),
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.kubernetesVersion"}"#,
    printcolumn = r#"{"name": "Cluster Name", "type": "string", "jsonPath": ".status.clusterName"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Kubeconfig", "type": "string", "jsonPath": ".status.clientSecretName"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Environment of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    /// Cloud credential: `namespace:name`, or a bare name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 317))]
    pub cloud_credential_secret_name: String,
    /// An existing CAPI Cluster (deprecated).
    #[serde(rename = "clusterAPIConfig", default, skip_serializing_if = "Option::is_none")]
    pub cluster_api_config: Option<ClusterAPIConfig>,
    /// How the cluster agent is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// Role given to members of new projects (deprecated).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_cluster_role_for_project_members: String,
    /// Template of the pod security admission configuration.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_pod_security_admission_configuration_template_name: String,
    /// Whether projects are isolated by network policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_network_policy: Option<bool>,
    /// How the fleet agent is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// Version of the distribution, such as v1.34.1+k3s1.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    /// Direct access to the cluster's own API endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    /// Increase to install the node agents again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub redeploy_system_agent_generation: i64,
    /// Machine pools and configuration; absent for imported clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rke_config: Option<RKEConfig>,
    /// How the webhook is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_deployment_customization: Option<WebhookDeploymentCustomization>,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// True once the cluster agent runs.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub agent_deployed: bool,
    /// Secret with the cluster's kubeconfig.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 253))]
    pub client_secret_name: String,
    /// Name of the management Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// Fleet workspace.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 63))]
    pub fleet_workspace_name: String,
    /// Generation that the last complete pass has seen.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub observed_generation: i64,
    /// True once the cluster has been ready.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    /// What is waited for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<Wait>,
}

impl Cluster {
    /// Name (id) of its management Cluster, once it is noted.
    pub fn management_id(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.cluster_name.as_str()).filter(|id| !id.is_empty())
    }
}

/// An existing CAPI Cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAPIConfig {
    /// Name of the Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
}
