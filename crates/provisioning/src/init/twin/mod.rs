//! The management Cluster (twin) of a provisioning Cluster, its namespace and its registration token. Pure.

pub mod identity;
pub mod status;
pub mod token;

use std::collections::BTreeMap;

use drover_api::management::v3::{
    self as management, ClusterRegistrationToken, ClusterRegistrationTokenSpec,
};
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::EnvVar;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ObjectMeta;

use crate::keys::annotations;

/// Name of the token that every cluster has.
pub const DEFAULT_TOKEN: &str = "default-token";

/// The management Cluster.
pub fn twin(cluster: &Cluster, name: &str) -> management::Cluster {
    let spec = &cluster.spec;
    // kubectl's record of the last apply is about the other object.
    let all = cluster.metadata.annotations.iter().flatten();
    let mut notes: BTreeMap<String, String> = all
        .filter(|(key, _)| !key.starts_with("kubectl.kubernetes.io/"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // Proves whose twin this is, so it must not be copied from the Cluster, which people edit.
    notes.insert(annotations::CLUSTER_UID.to_owned(), cluster.metadata.uid.clone().unwrap_or_default());
    notes.insert(annotations::ADMINISTRATED.to_owned(), spec.rke_config.is_some().to_string());
    let mut env = spec.agent_env_vars.clone();
    let directories = spec.rke_config.as_ref().and_then(|config| config.config.data_directories.as_ref());
    if let Some(directories) = directories.filter(|d| !d.system_agent.is_empty()) {
        let value = directories.system_agent.clone();
        env.push(EnvVar { name: "CATTLE_AGENT_VAR_DIR".to_owned(), value });
    }
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let workspace = match annotation(cluster, annotations::FLEET_WORKSPACE_NAME) {
        "" => namespace,
        chosen => chosen,
    };
    let mut twin = management::Cluster::new(
        name,
        management::ClusterSpec {
            display_name: cluster.metadata.name.clone().unwrap_or_default(),
            description: annotation(cluster, annotations::DESCRIPTION).to_owned(),
            imported_config: Some(management::ImportedConfig::default()),
            fleet_workspace_name: workspace.to_owned(),
            agent_env_vars: env,
            local_cluster_auth_endpoint: spec.local_cluster_auth_endpoint.clone(),
            cluster_agent_deployment_customization: spec.cluster_agent_deployment_customization.clone(),
            fleet_agent_deployment_customization: spec.fleet_agent_deployment_customization.clone(),
            webhook_deployment_customization: spec.webhook_deployment_customization.clone(),
            ..management::ClusterSpec::default()
        },
    );
    // An empty map would be applied again and again.
    twin.metadata.labels = cluster.metadata.labels.clone().filter(|labels| !labels.is_empty());
    twin.metadata.annotations = Some(notes);
    twin
}

/// The namespace of the management Cluster.
pub fn namespace(cluster: &Cluster, name: &str) -> Namespace {
    let uid = cluster.metadata.uid.clone().unwrap_or_default();
    let notes = [("management.cattle.io/cluster-id", name.to_owned()), (annotations::CLUSTER_UID, uid)];
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(notes.map(|(key, value)| (key.to_owned(), value)).into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// The registration token that every cluster has.
pub fn default_token(name: &str) -> ClusterRegistrationToken {
    let spec = ClusterRegistrationTokenSpec { cluster_name: name.to_owned(), ..Default::default() };
    let mut token = ClusterRegistrationToken::new(DEFAULT_TOKEN, spec);
    token.metadata.namespace = Some(name.to_owned());
    token
}

pub(in crate::init) fn annotation<'a>(cluster: &'a Cluster, key: &str) -> &'a str {
    cluster.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str).unwrap_or_default()
}
