//! From a provisioning Cluster to the Cluster API objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_api::names::safe_concat_name;
use drover_api::provisioning::v1::{Cluster, RKEConfig, RKEMachinePool};
use drover_api::rke::v1::DataDirectories;
use serde_json::{Value, json};

use super::objectset::ObjectSet;
use super::pools::{self, References};
use super::problems;
use super::template::{self, CONFIG_API_VERSION};
use crate::keys::{annotations, labels};

/// What generation looks at besides the Cluster.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub management_name: String,
    /// Config objects by kind and name.
    pub configs: BTreeMap<(String, String), Value>,
    /// Field names per Config kind, from the drivers' schemas.
    pub schemas: BTreeMap<String, Vec<String>>,
    /// Cloud credential secrets that exist, as they are referred to.
    pub credentials: BTreeSet<String>,
    /// Versions that can be installed.
    pub versions: BTreeSet<String>,
    /// Where machines of a cluster that is there already keep their things.
    pub data_directories: Option<DataDirectories>,
    /// Pools whose machines are all that holds what is in the cluster.
    pub state_holders: BTreeSet<String>,
}

/// Why nothing is generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// A person has to change something.
    #[error("{0}")]
    Invalid(String),
    /// Something is still to come.
    #[error("{0}")]
    NotYet(String),
}

/// All objects a cluster consists of, and the Configs it must own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    pub objects: Vec<Value>,
    /// Kind and name of Configs that should get a controller reference.
    pub adopt: Vec<(String, String)>,
}

/// Without `rkeConfig` a Cluster stands for one that somebody else provisioned and that is imported.
const NOT_OURS: &str = "spec.rkeConfig is missing, which makes this an imported cluster, and Drover does not import \
     clusters yet; to have a cluster provisioned, set spec.kubernetesVersion and spec.rkeConfig";

/// Generates everything, or nothing.
pub fn generate(cluster: &Cluster, around: &Surroundings) -> Result<Generated, GenerateError> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    // Whatever such a cluster may have been before, nothing of it is taken away.
    let Some(config) = &cluster.spec.rke_config else {
        return Err(GenerateError::Invalid(NOT_OURS.to_owned()));
    };
    let mut problems = Vec::new();
    problems.extend(version_problem(&cluster.spec.kubernetes_version, &around.versions));
    problems.extend(problems::problems(cluster, around.data_directories.as_ref()));
    problems.extend(pools::problems(config));
    problems.extend(pools::no_state_left(config, &around.state_holders));
    let mut generated = Generated::default();
    let objects = &mut generated.objects;
    if config.infrastructure_ref.is_none() {
        objects.push(rke_cluster(cluster, namespace, name));
    }
    objects.push(control_plane(cluster, config, namespace, name, &around.management_name));
    objects.push(capi_cluster(cluster, config, namespace, name));
    let bootstrap_template = safe_concat_name(&[name, "bootstrap", "template"]);
    if !config.machine_pools.is_empty() {
        objects.push(json!({
            "apiVersion": drover_api::rke::v1::API_VERSION,
            "kind": "RKEBootstrapTemplate",
            "metadata": {
                "namespace": namespace, "name": bootstrap_template, "labels": {labels::CLUSTER_NAME: name},
            },
            "spec": {"clusterName": name, "template": {"spec": {"clusterName": name}}},
        }));
    }
    let hostname_limit = config.machine_pool_defaults.as_ref().map(|d| d.hostname_length_limit);
    for (index, pool) in config.machine_pools.iter().enumerate() {
        let (infrastructure, extra, adopt) = match infrastructure(cluster, pool, around) {
            Ok(found) => found,
            Err(why) => {
                problems.extend(why.map(|why| format!("{}: {why}", pools::path(index, pool))));
                continue;
            }
        };
        generated.adopt.extend(adopt);
        objects.extend(extra);
        let refs = References { infrastructure, bootstrap_template: bootstrap_template.clone() };
        objects.push(pools::machine_deployment(namespace, name, pool, hostname_limit, &refs));
        objects.extend(pools::health_check(namespace, name, pool));
    }
    if !problems.is_empty() {
        problems.extend(pools::missing_roles(config));
        // All of them: who puts one right should not learn of the next only then.
        return Err(GenerateError::Invalid(problems.join("; ")));
    }
    let set = ObjectSet::cluster(namespace, name);
    objects.iter_mut().for_each(|object| set.mark(object));
    Ok(generated)
}

/// A version that nobody knows stops the cluster here, with a word, instead of in the planner, which would wait.
fn version_problem(version: &str, known: &BTreeSet<String>) -> Option<String> {
    if version.is_empty() {
        return Some("spec.kubernetesVersion must not be empty".to_owned());
    }
    let wanted = if version.starts_with('v') { version.to_owned() } else { format!("v{version}") };
    (!known.contains(&wanted)).then(|| {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        format!(
            "kubernetesVersion {version:?} is not known: set spec.kubernetesVersion to one of {}",
            known.join(", ")
        )
    })
}

fn rke_cluster(cluster: &Cluster, namespace: &str, name: &str) -> Value {
    let mut notes = json!({});
    let key = annotations::DELETE_MISSING_CUSTOM_MACHINES_AFTER;
    if let Some(after) = cluster.metadata.annotations.as_ref().and_then(|a| a.get(key)) {
        notes[key] = json!(after);
    }
    json!({
        "apiVersion": drover_api::rke::v1::API_VERSION,
        "kind": "RKECluster",
        "metadata": {"namespace": namespace, "name": name, "annotations": notes},
        "spec": {},
    })
}

fn control_plane(
    cluster: &Cluster,
    config: &RKEConfig,
    namespace: &str,
    name: &str,
    management: &str,
) -> Value {
    let mut spec = json!(config.config);
    for (key, value) in [
        ("etcdSnapshotCreate", json!(config.etcd_snapshot_create)),
        ("etcdSnapshotRestore", json!(config.etcd_snapshot_restore)),
        ("rotateCertificates", json!(config.rotate_certificates)),
        ("rotateEncryptionKeys", json!(config.rotate_encryption_keys)),
        ("localClusterAuthEndpoint", json!(cluster.spec.local_cluster_auth_endpoint)),
    ] {
        if !value.is_null() {
            spec[key] = value;
        }
    }
    spec["kubernetesVersion"] = json!(cluster.spec.kubernetes_version);
    spec["managementClusterName"] = json!(management);
    spec["clusterName"] = json!(name);
    if !cluster.spec.agent_env_vars.is_empty() {
        spec["agentEnvVars"] = json!(cluster.spec.agent_env_vars);
    }
    let mut notes = json!({annotations::CLUSTER_SPEC: recorded_spec(cluster)});
    let prime = annotations::RKE2_PRIME_ENABLED;
    if let Some(value) = cluster.metadata.annotations.as_ref().and_then(|a| a.get(prime)) {
        notes[prime] = json!(value);
    }
    let designated =
        cluster.metadata.labels.as_ref().and_then(|l| l.get(labels::INIT_NODE_MACHINE_ID)).cloned();
    json!({
        "apiVersion": drover_api::rke::v1::API_VERSION,
        "kind": "RKEControlPlane",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {
                labels::INIT_NODE_MACHINE_ID: designated.unwrap_or_default(),
                labels::capi::CLUSTER_NAME: name,
            },
            "annotations": notes,
        },
        "spec": spec,
    })
}

/// base64(gzip(JSON)) of the spec without the operations of day two, for snapshots to remember.
fn recorded_spec(cluster: &Cluster) -> String {
    let mut spec = cluster.spec.clone();
    if let Some(config) = &mut spec.rke_config {
        config.etcd_snapshot_create = None;
        config.etcd_snapshot_restore = None;
        config.rotate_certificates = None;
        config.rotate_encryption_keys = None;
    }
    let bytes = crate::digest::go_json(&json!(spec));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    // Writing to memory does not fail.
    let packed = encoder.write_all(&bytes).and_then(|()| encoder.finish()).unwrap_or_default();
    BASE64_STANDARD.encode(packed)
}

fn capi_cluster(cluster: &Cluster, config: &RKEConfig, namespace: &str, name: &str) -> Value {
    let mut notes = json!({});
    let paused = annotations::CLUSTER_AUTOSCALER_PAUSED;
    let is_paused =
        cluster.metadata.annotations.as_ref().is_some_and(|a| a.get(paused).is_some_and(|v| !v.is_empty()));
    if is_paused {
        notes[paused] = json!("true");
    } else if config.machine_pools.iter().any(|pool| pool.autoscaling_min_size.is_some()) {
        notes[annotations::CLUSTER_AUTOSCALER_ENABLED] = json!("true");
    }
    let infrastructure = match &config.infrastructure_ref {
        None => json!({"apiGroup": "rke.cattle.io", "kind": "RKECluster", "name": name}),
        Some(external) => json!({
            "apiGroup": group_of(external.api_version.as_deref().unwrap_or_default()),
            "kind": external.kind,
            "name": external.name,
        }),
    };
    json!({
        "apiVersion": drover_api::capi::v1beta2::API_VERSION,
        "kind": "Cluster",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "annotations": notes,
            "ownerReferences": [owner_reference(cluster)],
        },
        "spec": {
            "infrastructureRef": infrastructure,
            "controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": name},
        },
    })
}

/// Controller reference to the provisioning Cluster.
pub fn owner_reference(cluster: &Cluster) -> Value {
    json!({
        "apiVersion": drover_api::provisioning::v1::API_VERSION,
        "kind": "Cluster",
        "name": cluster.metadata.name,
        "uid": cluster.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

type Infrastructure = (Value, Option<Value>, Option<(String, String)>);

/// Where a pool's machines come from, or why from nowhere; no reason if that is said already.
fn infrastructure(
    cluster: &Cluster,
    pool: &RKEMachinePool,
    around: &Surroundings,
) -> Result<Infrastructure, Option<String>> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let reference = &pool.machine_config_ref;
    let (kind, config_name) =
        (reference.kind.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
    let api_version = reference.api_version.as_deref().unwrap_or_default();
    if !api_version.is_empty() && api_version != CONFIG_API_VERSION {
        let group = group_of(api_version);
        return Ok((json!({"apiGroup": group, "kind": kind, "name": config_name}), None, None));
    }
    if kind.is_empty() || config_name.is_empty() {
        return Err(None);
    }
    let refuse = |why: String| Some(format!("machineConfigRef: {why}"));
    let Some(fields) = recorded_fields(pool).or_else(|| around.schemas.get(&kind).cloned()) else {
        return Err(refuse(format!("no active node driver provides the kind {kind}")));
    };
    let Some(config) = around.configs.get(&(kind.clone(), config_name.clone())) else {
        return Err(refuse(format!("{kind} {namespace}/{config_name} does not exist")));
    };
    check_owner(cluster, config)
        .map_err(|owner| refuse(format!("{kind} {namespace}/{config_name} is already owned by {owner}")))?;
    let credential = match pool.cloud_credential_secret_name.as_str() {
        "" => cluster.spec.cloud_credential_secret_name.as_str(),
        own => own,
    };
    if !credential.is_empty() && !around.credentials.contains(credential) {
        return Err(Some(format!("cloudCredentialSecretName: Secret {credential} does not exist")));
    }
    let template = template::machine_template(&template::Input {
        namespace,
        cluster: name,
        deployment: &pools::deployment_name(name, &pool.name),
        pool,
        config,
        fields: &fields,
        credential,
    });
    let infrastructure = json!({
        "apiGroup": "rke-machine.cattle.io", "kind": template["kind"], "name": template["metadata"]["name"],
    });
    Ok((infrastructure, Some(template), Some((kind, config_name))))
}

/// The fields that the driver had when the pool was made, if the pool says so.
fn recorded_fields(pool: &RKEMachinePool) -> Option<Vec<String>> {
    let schema: Value = serde_json::from_str(&pool.dynamic_schema_spec).ok()?;
    Some(schema.get("resourceFields")?.as_object()?.keys().cloned().collect())
}

/// A Config belongs to one cluster.
fn check_owner(cluster: &Cluster, config: &Value) -> Result<(), String> {
    let owners = config["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    for owner in owners {
        let ours = owner["uid"].as_str() == cluster.metadata.uid.as_deref();
        let is_cluster = owner["kind"] == "Cluster";
        if !ours && (is_cluster || owner["controller"] == true) {
            let text = |key: &str| owner[key].as_str().unwrap_or_default().to_owned();
            return Err(format!("{} {}", text("kind"), text("name")));
        }
    }
    Ok(())
}

/// `group/version` without the version.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
