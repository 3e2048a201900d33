//! The management twin, its namespace and its registration token.

use drover_api::provisioning::v1::Cluster;
use serde_json::{Map, Value, json};

use crate::keys::annotations;

/// Name of the token that every cluster has.
pub const DEFAULT_TOKEN: &str = "default-token";

/// Twin, namespace and registration token.
pub fn objects(cluster: &Cluster, name: &str) -> Vec<Value> {
    vec![
        twin(cluster, name),
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "annotations": {
                    "management.cattle.io/cluster-id": name, annotations::CLUSTER_UID: cluster.metadata.uid,
                },
            },
        }),
        json!({
            "apiVersion": drover_api::management::v3::API_VERSION,
            "kind": "ClusterRegistrationToken",
            "metadata": {"namespace": name, "name": DEFAULT_TOKEN},
            "spec": {"clusterName": name},
        }),
    ]
}

fn twin(cluster: &Cluster, name: &str) -> Value {
    let spec = &cluster.spec;
    let mut notes: Map<String, Value> = cluster
        .metadata
        .annotations
        .iter()
        .flatten()
        // kubectl's record of the last apply is about the other object.
        .filter(|(key, _)| !key.starts_with("kubectl.kubernetes.io/"))
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    // Proves whose twin this is, so it must not be copied from the Cluster, which people edit.
    notes.insert(annotations::CLUSTER_UID.into(), json!(cluster.metadata.uid));
    notes.insert(annotations::ADMINISTRATED.into(), json!(spec.rke_config.is_some().to_string()));
    let mut env = json!(spec.agent_env_vars).as_array().cloned().unwrap_or_default();
    let directories = spec.rke_config.as_ref().and_then(|config| config.config.data_directories.as_ref());
    if let Some(directories) = directories.filter(|d| !d.system_agent.is_empty()) {
        env.push(json!({"name": "CATTLE_AGENT_VAR_DIR", "value": directories.system_agent}));
    }
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let workspace = match annotation(cluster, annotations::FLEET_WORKSPACE_NAME) {
        "" => namespace,
        chosen => chosen,
    };
    let mut twin = json!({
        "displayName": cluster.metadata.name,
        "importedConfig": {},
        "fleetWorkspaceName": workspace,
    });
    let description = annotation(cluster, annotations::DESCRIPTION);
    if !description.is_empty() {
        twin["description"] = json!(description);
    }
    if !env.is_empty() {
        twin["agentEnvVars"] = json!(env);
    }
    for (key, value) in [
        ("localClusterAuthEndpoint", json!(spec.local_cluster_auth_endpoint)),
        ("clusterAgentDeploymentCustomization", json!(spec.cluster_agent_deployment_customization)),
        ("fleetAgentDeploymentCustomization", json!(spec.fleet_agent_deployment_customization)),
        ("webhookDeploymentCustomization", json!(spec.webhook_deployment_customization)),
    ] {
        if !value.is_null() {
            twin[key] = value;
        }
    }
    json!({
        "apiVersion": drover_api::management::v3::API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": name, "labels": cluster.metadata.labels.clone().unwrap_or_default(), "annotations": notes},
        "spec": twin,
    })
}

pub(super) fn annotation<'a>(cluster: &'a Cluster, key: &str) -> &'a str {
    cluster.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str).unwrap_or_default()
}
