//! Cluster: a cluster that a user creates.

use super::customization::{AgentDeploymentCustomization, WebhookDeploymentCustomization};
use super::rke_config::RKEConfig;
use crate::rke::v1::{EnvVar, GenericCondition, LocalClusterAuthEndpoint};
use crate::wait::Wait;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the Cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "provisioning.cattle.io",
    version = "v1",
    kind = "Cluster",
    plural = "clusters",
    namespaced,
    doc = "A K3s or RKE2 cluster: its machine pools, version and configuration.",
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
    /// Environment variables of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub agent_env_vars: Vec<EnvVar>,
    /// The Secret with the cloud credential for machine pools that set none: `namespace:name`, or only a
    /// name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 317))]
    pub cloud_credential_secret_name: String,
    /// A reference to an existing Cluster API Cluster (deprecated). Not implemented yet: the value is stored
    /// but has no effect.
    #[serde(rename = "clusterAPIConfig", default, skip_serializing_if = "Option::is_none")]
    pub cluster_api_config: Option<ClusterAPIConfig>,
    /// Scheduling options of the cluster agent. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// The cluster role of members of new projects (deprecated). Not implemented yet: the value is stored but
    /// has no effect.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_cluster_role_for_project_members: String,
    /// The name of the template for the pod security admission configuration. Not implemented yet: the value
    /// is stored but has no effect.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_pod_security_admission_configuration_template_name: String,
    /// Whether network policies isolate projects from each other. Not implemented yet: the value is stored
    /// but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_network_policy: Option<bool>,
    /// Scheduling options of the Fleet agent. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet_agent_deployment_customization: Option<AgentDeploymentCustomization>,
    /// The version of the distribution, for example v1.34.1+k3s1.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kubernetes_version: String,
    /// The authorized cluster endpoint. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cluster_auth_endpoint: Option<LocalClusterAuthEndpoint>,
    /// Increase this number to reinstall the node agents. Not implemented yet: the value is stored but has no
    /// effect.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub redeploy_system_agent_generation: i64,
    /// The machine pools and the configuration of the cluster. Unset for imported clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rke_config: Option<RKEConfig>,
    /// Scheduling options of the webhook. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_deployment_customization: Option<WebhookDeploymentCustomization>,
}

/// The observed state of the Cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// True after the cluster agent has connected for the first time.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub agent_deployed: bool,
    /// The name of the Secret with the kubeconfig of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 253))]
    pub client_secret_name: String,
    /// The name of the management Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// The conditions of the Cluster, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
    /// The Fleet workspace of the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 63))]
    pub fleet_workspace_name: String,
    /// The most recent generation of the object that was reconciled without an error.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub observed_generation: i64,
    /// True after the cluster agent has connected for the first time.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    /// What the controllers are waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<Wait>,
}

impl Cluster {
    /// The name (ID) of its management Cluster, if it is recorded in the status.
    pub fn management_id(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.cluster_name.as_str()).filter(|id| !id.is_empty())
    }
}

/// A reference to an existing Cluster API Cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAPIConfig {
    /// The name of the Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
}
