//! What a pass over a provisioning Cluster writes. Pure and total.

use std::collections::BTreeSet;

use drover_api::capi::v1beta2::{self as capi, MachineDeployment, MachineHealthCheck};
use drover_api::management::v3::{self as management, ClusterRegistrationToken};
use drover_api::provisioning::v1::RKEMachinePool;
use drover_api::rke::v1::{RKEBootstrapTemplate, RKECluster, RKEControlPlane};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::DynamicObject;

use super::kubeconfig;
use super::objects::infrastructure::ConfigRef;
use super::objects::set::ObjectSet;
use super::objects::{Generated, PoolObjects, generate};
use super::pools::scale::{INITIAL_QUANTITY, applied_quantity, quantity_text, scaled_to};
use super::scope::{FINALIZERS, Scope};
use super::twin::{self, annotation, identity};
use super::waits::{Refusal, Waiting};
use crate::keys::{annotations, labels};
use crate::owner::controller_reference;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// What the Cluster itself gets before anything is made from it, in one write.
    Prepare(Preparation),
    /// The id was chosen by a person, and may be in use although no cache shows it.
    CreateTwin(Box<management::Cluster>),
    ApplyTwin(Box<management::Cluster>),
    ApplyNamespace(Box<Namespace>),
    ApplyToken(Box<ClusterRegistrationToken>),
    /// A pool takes over the number of machines of its MachineDeployment.
    SetPools(Vec<RKEMachinePool>),
    /// The MachineDeployment gets the pool's number of machines.
    Scale(Box<RKEMachinePool>),
    /// The Config is deleted with the Cluster.
    OwnConfig {
        config: ConfigRef,
        owners: Vec<OwnerReference>,
    },
    ApplyRkeCluster(Box<RKECluster>),
    ApplyControlPlane(Box<RKEControlPlane>),
    ApplyCapiCluster(Box<capi::Cluster>),
    ApplyBootstrapTemplate(Box<RKEBootstrapTemplate>),
    ApplyTemplate(Box<DynamicObject>),
    ApplyDeployment(Box<MachineDeployment>),
    ApplyHealthCheck(Box<MachineHealthCheck>),
    DeleteDeployment(String),
    DeleteHealthCheck(String),
    DeleteTemplate {
        kind: String,
        name: String,
    },
    /// Its token is random: one that exists already must stay.
    CreateKubeconfig(Box<Secret>),
    ApplyKubeconfig(Box<Secret>),
}

/// See [`Action::Prepare`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preparation {
    pub finalizers: Vec<String>,
    pub display_name: Option<String>,
    /// With the fields of their drivers recorded.
    pub pools: Option<Vec<RKEMachinePool>>,
}

/// How a pass ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The Cluster itself was changed; the next pass goes on, and the status stays.
    Prepared,
    /// A person has to change something.
    Refused(Refusal),
    /// Nothing can be generated yet.
    Waiting(Waiting),
    Generated,
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Writes, in order.
    pub actions: Vec<Action>,
    pub outcome: Outcome,
}

/// Decides.
pub fn decide(scope: &Scope) -> Decision {
    if let Err(refusal) = identity::check(&scope.cluster, &scope.identity, &scope.evidence) {
        return Decision { actions: vec![], outcome: Outcome::Refused(Refusal::Identity(refusal)) };
    }
    if let Some(preparation) = preparation(scope) {
        return Decision { actions: vec![Action::Prepare(preparation)], outcome: Outcome::Prepared };
    }
    let mut actions = management_cluster(scope);
    if let Some(action) = follow_scale(scope) {
        actions.push(action);
        return Decision { actions, outcome: Outcome::Prepared };
    }
    let outcome = match (&scope.unlisted, generate(&scope.cluster, &scope.sources)) {
        // What is not listed looks as if it did not exist.
        (Some(kind), _) => Outcome::Waiting(Waiting::Listing { kind: kind.clone() }),
        (None, Err(refusal)) => Outcome::Refused(refusal),
        (None, Ok(generated)) => {
            let removed = no_longer_generated(scope, &generated);
            actions.extend(generated_objects(scope, generated));
            actions.extend(removed);
            Outcome::Generated
        }
    };
    actions.extend(kubeconfig_of(scope));
    Decision { actions, outcome }
}

/// Finalizers come first: until the cache shows them, nothing is made that they would have to remove.
fn preparation(scope: &Scope) -> Option<Preparation> {
    let present = scope.cluster.finalizers();
    let missing = FINALIZERS.into_iter().filter(|name| !present.iter().any(|there| there == name));
    let name = scope.cluster.name_any();
    let shown = annotation(&scope.cluster, annotations::MANAGEMENT_CLUSTER_DISPLAY_NAME);
    let preparation = Preparation {
        finalizers: missing.map(str::to_owned).collect(),
        display_name: (shown != name).then_some(name),
        pools: scope.recorded_pools.clone(),
    };
    (preparation != Preparation::default()).then_some(preparation)
}

/// The management Cluster, its namespace and its token.
fn management_cluster(scope: &Scope) -> Vec<Action> {
    let (cluster, id) = (&scope.cluster, scope.identity.id.as_str());
    let twin = Box::new(twin::twin(cluster, id));
    let mut actions = Vec::new();
    if scope.evidence.twin.is_none() && !scope.identity.derived {
        actions.push(Action::CreateTwin(twin.clone()));
    }
    actions.push(Action::ApplyTwin(twin));
    let namespace = twin::namespace(cluster, id);
    let live = scope.evidence.namespace.as_deref();
    // Its annotations are all that is applied, and they are constant.
    let wanted = namespace.annotations();
    if !live.is_some_and(|live| wanted.iter().all(|(key, value)| live.annotations().get(key) == Some(value)))
    {
        actions.push(Action::ApplyNamespace(Box::new(namespace)));
    }
    if !scope.has_token {
        actions.push(Action::ApplyToken(Box::new(twin::default_token(id))));
    }
    actions
}

/// A MachineDeployment that was scaled: the pool follows, instead of being forced back.
fn follow_scale(scope: &Scope) -> Option<Action> {
    let pools = scope.pools();
    pools.iter().enumerate().find_map(|(index, pool)| {
        let deployment = scope.deployment_of(pool)?;
        let applied = applied_quantity(deployment);
        let replicas = deployment.spec.replicas;
        // Also while the rest of the spec is refused, or a scale back would look like a pool that was changed.
        let agreed = pool.quantity.is_some() && replicas == pool.quantity;
        if agreed && applied.is_some_and(|applied| applied != quantity_text(pool.quantity)) {
            return Some(Action::Scale(Box::new(pool.clone())));
        }
        let quantity = scaled_to(replicas, applied, pool.quantity)?;
        let mut pools = pools.to_vec();
        pools[index].quantity = Some(quantity);
        Some(Action::SetPools(pools))
    })
}

/// The generated objects, after the Configs that they are made from.
fn generated_objects(scope: &Scope, generated: Generated) -> Vec<Action> {
    let mut actions = Vec::new();
    for (_, config) in generated.pools.iter().filter_map(|pool| pool.template.as_ref()) {
        if let Some(action) = own_config(scope, config)
            && !actions.contains(&action)
        {
            actions.push(action);
        }
    }
    // Created first, because it is the owner of the others.
    actions.push(Action::ApplyCapiCluster(Box::new(generated.cluster)));
    let rke_cluster =
        generated.rke_cluster.filter(|wanted| !is_applied(scope.rke_cluster.as_deref(), wanted));
    actions.extend(rke_cluster.map(|object| Action::ApplyRkeCluster(Box::new(object))));
    actions.push(Action::ApplyControlPlane(Box::new(generated.control_plane)));
    let template = generated.bootstrap_template;
    actions.extend(template.map(|object| Action::ApplyBootstrapTemplate(Box::new(object))));
    for (pool, objects) in scope.pools().iter().zip(generated.pools) {
        actions.extend(objects_of_pool(scope, pool, objects));
    }
    actions
}

/// An RKECluster has an empty spec, which an apply would send again and again.
fn is_applied(live: Option<&RKECluster>, wanted: &RKECluster) -> bool {
    let optional = annotations::DELETE_MISSING_CUSTOM_MACHINES_AFTER;
    live.is_some_and(|live| {
        let has = |key: &str| wanted.annotations().get(key) == live.annotations().get(key);
        wanted.labels().iter().all(|(key, value)| live.labels().get(key) == Some(value))
            && wanted.annotations().keys().all(|key| has(key))
            && has(optional)
    })
}

/// A controller reference, so that the Config is deleted with the cluster.
fn own_config(scope: &Scope, config: &ConfigRef) -> Option<Action> {
    let live = scope.sources.configs.get(config)?;
    let own = controller_reference(scope.cluster.as_ref());
    let mut owners = live.owner_references().to_vec();
    if owners.iter().any(|owner| owner.uid == own.uid) {
        return None;
    }
    owners.push(own);
    Some(Action::OwnConfig { config: config.clone(), owners })
}

fn objects_of_pool(scope: &Scope, pool: &RKEMachinePool, objects: PoolObjects) -> Vec<Action> {
    let mut actions = Vec::new();
    actions.extend(objects.template.map(|(template, _)| Action::ApplyTemplate(Box::new(template))));
    let mut deployment = Box::new(objects.deployment);
    let quantity = quantity_text(pool.quantity);
    let initial = match scope.deployment_of(pool) {
        Some(live) => {
            if applied_quantity(live) != Some(&quantity) {
                actions.push(Action::Scale(Box::new(pool.clone())));
            }
            deployment.spec.replicas = None;
            live.annotations().get(INITIAL_QUANTITY).cloned()
        }
        None => {
            // What a MachineDeployment has by itself. Left out, the field does not have to be released with another write.
            if pool.quantity == Some(1) && !has_bounds(&deployment) {
                deployment.spec.replicas = None;
            }
            deployment.spec.replicas.is_none().then_some(quantity)
        }
    };
    let notes = deployment.metadata.annotations.get_or_insert_default();
    notes.extend(initial.map(|quantity| (INITIAL_QUANTITY.to_owned(), quantity)));
    actions.push(Action::ApplyDeployment(deployment));
    actions.extend(objects.health_check.map(|check| Action::ApplyHealthCheck(Box::new(check))));
    actions
}

/// The API gives a MachineDeployment with bounds for the autoscaler another number of machines.
fn has_bounds(deployment: &MachineDeployment) -> bool {
    let bounds = [annotations::capi::AUTOSCALER_MIN_SIZE, annotations::capi::AUTOSCALER_MAX_SIZE];
    bounds.iter().any(|bound| deployment.annotations().contains_key(*bound))
}

/// What is no longer generated: MachineDeployments and checks of removed pools, then templates that no MachineDeployment
/// and no MachineSet uses any more.
fn no_longer_generated(scope: &Scope, generated: &Generated) -> Vec<Action> {
    let key = scope.key();
    let hash = ObjectSet::cluster(&key.namespace, &key.name).hash();
    let pools = &generated.pools;
    let deployments: BTreeSet<String> = pools.iter().map(|pool| pool.deployment.name_any()).collect();
    let checks: BTreeSet<String> =
        pools.iter().filter_map(|pool| pool.health_check.as_ref()).map(ResourceExt::name_any).collect();
    let mut actions = Vec::new();
    let is_generated =
        |live: &&std::sync::Arc<MachineDeployment>| live.labels().get(labels::OBJECTSET_HASH) == Some(&hash);
    for live in scope.deployments.iter().filter(is_generated) {
        if live.metadata.deletion_timestamp.is_none() && !deployments.contains(&live.name_any()) {
            actions.push(Action::DeleteDeployment(live.name_any()));
        }
    }
    for live in &scope.health_checks {
        if live.metadata.deletion_timestamp.is_none() && !checks.contains(&live.name_any()) {
            actions.push(Action::DeleteHealthCheck(live.name_any()));
        }
    }
    let wanted =
        pools.iter().filter_map(|pool| pool.template.as_ref()).map(|(template, _)| template.name_any());
    let mut used: BTreeSet<String> = wanted.collect();
    used.extend(scope.deployments.iter().map(|d| d.spec.template.spec.infrastructure_ref.name.clone()));
    used.extend(scope.sets.iter().map(|s| s.spec.template.spec.infrastructure_ref.name.clone()));
    let unused =
        scope.templates.iter().filter(|template| !template.deleting && !used.contains(&template.name));
    actions.extend(
        unused.map(|template| Action::DeleteTemplate {
            kind: template.kind.clone(),
            name: template.name.clone(),
        }),
    );
    actions
}

/// The kubeconfig, once the cluster has answered; its token stays.
fn kubeconfig_of(scope: &Scope) -> Option<Action> {
    if !scope.is_connected() && !scope.was_ready() {
        return None;
    }
    let (cluster, key) = (&scope.cluster, scope.key());
    let live = scope.kubeconfig.as_deref();
    let token = live
        .and_then(|secret| kubeconfig::own_token(secret, &key.namespace, &key.name))
        .unwrap_or_else(|| kubeconfig::new_token(&key.namespace, &key.name, &scope.fresh_token));
    let value = kubeconfig::render(&scope.settings, &scope.identity.id, &token);
    let desired = kubeconfig::secret(cluster, &value, &token);
    let Some(live) = live else { return Some(Action::CreateKubeconfig(Box::new(desired))) };
    (!kubeconfig::holds(live, &desired)).then(|| Action::ApplyKubeconfig(Box::new(desired)))
}
