//! From a provisioning Cluster to the Cluster API objects. Pure.

pub mod cluster;
pub mod controlplane;
pub mod infrastructure;
pub mod set;
pub mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drover_api::capi::v1beta2::{self as capi, MachineDeployment, MachineHealthCheck};
use drover_api::names::safe_concat_name;
use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::{DataDirectories, RKEBootstrapTemplate, RKECluster, RKEControlPlane};
use kube::api::DynamicObject;

use self::infrastructure::ConfigRef;
use self::set::ObjectSet;
use super::pools::deployment::{References, machine_deployment};
use super::pools::healthcheck::health_check;
use super::pools::{problems, state};
use super::validation;
use super::waits::Refusal;
use crate::keys::labels;

/// What objects are generated from, besides the Cluster.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub management_name: String,
    /// Configs by kind and name.
    pub configs: BTreeMap<ConfigRef, Arc<DynamicObject>>,
    /// Field names per kind of Configs, from the drivers' schemas.
    pub schemas: BTreeMap<String, Vec<String>>,
    /// Cloud credential secrets that exist, as they are referred to.
    pub credentials: BTreeSet<String>,
    /// Versions that can be installed.
    pub versions: BTreeSet<String>,
    /// The data directories of the machines of a cluster that exists.
    pub data_directories: Option<DataDirectories>,
    /// Pools whose machines hold all that is stored in the cluster.
    pub state_holders: BTreeSet<String>,
    /// See [`controlplane::recorded_spec`].
    pub recorded_spec: String,
}

/// The objects that a cluster consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Not with infrastructure of another provider.
    pub rke_cluster: Option<RKECluster>,
    pub control_plane: RKEControlPlane,
    pub cluster: capi::Cluster,
    /// Not without pools.
    pub bootstrap_template: Option<RKEBootstrapTemplate>,
    pub pools: Vec<PoolObjects>,
}

/// The objects of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolObjects {
    /// The machine template, and the Config that it is made from and that belongs to the cluster then. None for machines
    /// of another provider.
    pub template: Option<(DynamicObject, ConfigRef)>,
    pub deployment: MachineDeployment,
    pub health_check: Option<MachineHealthCheck>,
}

/// Generates everything, or nothing.
pub fn generate(cluster: &Cluster, sources: &Sources) -> Result<Generated, Refusal> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    // Nothing is removed, whatever such a cluster may have been before.
    let Some(config) = &cluster.spec.rke_config else { return Err(Refusal::Imported) };
    let mut found = Vec::new();
    found.extend(version_problem(&cluster.spec.kubernetes_version, &sources.versions));
    found.extend(validation::problems(cluster, sources.data_directories.as_ref()));
    found.extend(problems::problems(config));
    found.extend(state::no_state_left(config, &sources.state_holders));
    let bootstrap_template = safe_concat_name(&[name, "bootstrap", "template"]);
    let hostname_limit = config.machine_pool_defaults.as_ref().map(|d| d.hostname_length_limit);
    let mut pools = Vec::new();
    for (index, pool) in config.machine_pools.iter().enumerate() {
        match infrastructure::infrastructure(cluster, pool, sources) {
            Ok(made) => {
                let refs = References {
                    infrastructure: made.reference,
                    bootstrap_template: bootstrap_template.clone(),
                };
                pools.push(PoolObjects {
                    template: made.own,
                    deployment: machine_deployment(namespace, name, pool, hostname_limit, refs),
                    health_check: health_check(namespace, name, pool),
                });
            }
            Err(why) => found.extend(why.map(|why| format!("{}: {why}", problems::path(index, pool)))),
        }
    }
    if !found.is_empty() {
        found.extend(problems::missing_roles(config));
        // All of them: who puts one right should not learn of the next only then.
        return Err(Refusal::Spec(found));
    }
    let mut generated = Generated {
        rke_cluster: config.infrastructure_ref.is_none().then(|| cluster::rke_cluster(cluster)),
        control_plane: controlplane::control_plane(cluster, config, sources),
        cluster: cluster::capi_cluster(cluster, config),
        bootstrap_template: (!pools.is_empty()).then(|| template_of_bootstraps(cluster, bootstrap_template)),
        pools,
    };
    generated.mark(&ObjectSet::cluster(namespace, name));
    Ok(generated)
}

impl Generated {
    fn mark(&mut self, set: &ObjectSet) {
        self.rke_cluster.iter_mut().for_each(|object| set.mark(&mut object.metadata));
        set.mark(&mut self.control_plane.metadata);
        set.mark(&mut self.cluster.metadata);
        self.bootstrap_template.iter_mut().for_each(|object| set.mark(&mut object.metadata));
        for pool in &mut self.pools {
            pool.template.iter_mut().for_each(|(template, _)| set.mark(&mut template.metadata));
            set.mark(&mut pool.deployment.metadata);
            pool.health_check.iter_mut().for_each(|check| set.mark(&mut check.metadata));
        }
    }
}

fn template_of_bootstraps(cluster: &Cluster, name: String) -> RKEBootstrapTemplate {
    let own = cluster.metadata.name.clone().unwrap_or_default();
    let mut template = RKEBootstrapTemplate { metadata: cluster::meta(cluster), ..Default::default() };
    template.metadata.name = Some(name);
    template.metadata.labels = Some([(labels::CLUSTER_NAME.to_owned(), own.clone())].into());
    template.spec.cluster_name.clone_from(&own);
    template.spec.template.spec.cluster_name = own;
    template
}

/// A version without release data stops the cluster here, with a message, instead of in the planner, which would wait.
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

/// `group/version` without the version.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
