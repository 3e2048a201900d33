//! From any state passes come to an end: a pass that changes nothing follows, and it is repeated for ever.

use std::sync::Arc;

use drover_api::capi::v1beta2::MachineDeployment;
use drover_api::rke::v1::RKEControlPlane;
use jiff::Timestamp;
use kube::ResourceExt;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::{cluster, config, sources};
use crate::init::apply::Written;
use crate::init::decide::{Action, Decision, Outcome, decide};
use crate::init::pools::deployment_name;
use crate::init::pools::scale::{APPLIED_QUANTITY, quantity_text};
use crate::init::scope::{Scope, Template};
use crate::init::status;
use crate::init::twin::identity;
use crate::keys::annotations;

/// More passes than any state needs.
const MOST: usize = 20;

/// Something that happens to a cluster.
#[derive(Clone, Debug)]
enum Event {
    Quantity(usize, Option<i32>),
    Scaled(usize, i32),
    RemovedPool,
    Version(&'static str),
    Chosen(&'static str),
    StatusName(&'static str),
    ForeignTwin,
    ForeignNamespace,
    NoFinalizers,
    NoConfig,
    ForeignConfig,
    Recorded,
    Unlisted,
    Ready(bool),
    Connected,
    NoKubeconfig,
    Leftovers,
}

fn event() -> impl Strategy<Value = Event> {
    let id = prop::sample::select(vec!["kube-system", "c-m-chosen12", "c-abc12", ""]);
    prop_oneof![
        (0..2_usize, prop::option::of(0..4)).prop_map(|(pool, quantity)| Event::Quantity(pool, quantity)),
        (0..2_usize, 0..4).prop_map(|(pool, replicas)| Event::Scaled(pool, replicas)),
        Just(Event::RemovedPool),
        prop::sample::select(vec!["v1.34.2+k3s1", "v9", ""]).prop_map(Event::Version),
        id.clone().prop_map(Event::Chosen),
        id.prop_map(Event::StatusName),
        Just(Event::ForeignTwin),
        Just(Event::ForeignNamespace),
        Just(Event::NoFinalizers),
        Just(Event::NoConfig),
        Just(Event::ForeignConfig),
        Just(Event::Recorded),
        Just(Event::Unlisted),
        any::<bool>().prop_map(Event::Ready),
        Just(Event::Connected),
        Just(Event::NoKubeconfig),
        Just(Event::Leftovers),
    ]
}

struct World {
    scope: Scope,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let mut scope = Scope { cluster: Arc::new(cluster()), sources: sources(), ..Scope::default() };
        scope.fresh_token = "fresh".into();
        Self { scope, now: "2026-01-01T00:00:00Z".parse().unwrap() }
    }

    /// What `observe` would see.
    fn observe(&mut self) {
        let scope = &mut self.scope;
        let twins: Vec<_> = scope.evidence.twin.iter().cloned().collect();
        let own = |twin: &Arc<drover_api::management::v3::Cluster>| {
            twin.annotations().get(annotations::CLUSTER_UID) == scope.cluster.metadata.uid.as_ref()
        };
        let twins: Vec<_> = twins.into_iter().filter(|twin| own(twin)).collect();
        scope.identity = identity::wanted(&scope.cluster, &twins);
        // Objects of another id are other objects.
        let id = scope.identity.id.clone();
        if scope.evidence.twin.as_ref().is_some_and(|twin| twin.name_any() != id) {
            scope.evidence.twin = None;
        }
        if scope.evidence.namespace.as_ref().is_some_and(|namespace| namespace.name_any() != id) {
            scope.evidence.namespace = None;
        }
        scope.sources.management_name = id;
    }

    /// One pass; whether it changed anything.
    fn pass(&mut self) -> bool {
        self.observe();
        let decision = decide(&self.scope);
        assert_eq!(decide(&self.scope), decision);
        let mut changed = false;
        for action in &decision.actions {
            changed |= self.apply(action);
        }
        changed | self.report(&decision)
    }

    fn report(&mut self, decision: &Decision) -> bool {
        if decision.outcome == Outcome::Prepared {
            return false;
        }
        let plane = status::plane(&self.scope, decision, &Written::default());
        let next = status::status(&self.scope, &decision.outcome, plane.as_deref(), None, self.now);
        let live = self.scope.cluster.status.clone().unwrap_or_default();
        let changed = live != next;
        Arc::make_mut(&mut self.scope.cluster).status = Some(next);
        changed
    }

    fn apply(&mut self, action: &Action) -> bool {
        let scope = &mut self.scope;
        match action {
            Action::Prepare(preparation) => {
                let cluster = Arc::make_mut(&mut scope.cluster);
                cluster.finalizers_mut().extend(preparation.finalizers.clone());
                if let Some(name) = &preparation.display_name {
                    let key = annotations::MANAGEMENT_CLUSTER_DISPLAY_NAME.to_owned();
                    cluster.annotations_mut().insert(key, name.clone());
                }
                if let Some(pools) = &preparation.pools {
                    cluster.spec.rke_config.as_mut().unwrap().machine_pools.clone_from(pools);
                    scope.recorded_pools = None;
                }
                true
            }
            Action::CreateTwin(twin) | Action::ApplyTwin(twin) => {
                let mut next = twin.as_ref().clone();
                next.status = scope.evidence.twin.as_ref().and_then(|live| live.status.clone());
                put(&mut scope.evidence.twin, next)
            }
            Action::ApplyNamespace(namespace) => {
                put(&mut scope.evidence.namespace, namespace.as_ref().clone())
            }
            Action::ApplyToken(_) => !std::mem::replace(&mut scope.has_token, true),
            Action::SetPools(pools) => {
                let cluster = Arc::make_mut(&mut scope.cluster);
                cluster.spec.rke_config.as_mut().unwrap().machine_pools.clone_from(pools);
                true
            }
            Action::Scale(pool) => {
                let name = deployment_name(&scope.cluster.name_any(), &pool.name);
                self.edit_deployment(&name, |deployment| {
                    let text = quantity_text(pool.quantity);
                    deployment.annotations_mut().insert(APPLIED_QUANTITY.to_owned(), text);
                    if pool.quantity.is_some() {
                        deployment.spec.replicas = pool.quantity;
                    }
                })
            }
            Action::OwnConfig { config, owners } => {
                let live = Arc::make_mut(scope.sources.configs.get_mut(config).unwrap());
                live.metadata.owner_references = Some(owners.clone());
                true
            }
            Action::ApplyRkeCluster(object) => put(&mut scope.rke_cluster, object.as_ref().clone()),
            Action::ApplyControlPlane(object) => {
                let mut next = object.as_ref().clone();
                next.status = scope.control_plane.as_ref().and_then(|live| live.status.clone());
                put(&mut scope.control_plane, next)
            }
            Action::ApplyDeployment(object) => {
                let name = object.name_any();
                let object = object.as_ref();
                if !scope.deployments.iter().any(|live| live.name_any() == name) {
                    scope.deployments.push(Arc::new(object.clone()));
                    return true;
                }
                self.edit_deployment(&name, |live| {
                    let replicas = object.spec.replicas.or(live.spec.replicas);
                    live.spec = object.spec.clone();
                    live.spec.replicas = replicas;
                    live.metadata.labels.clone_from(&object.metadata.labels);
                })
            }
            Action::ApplyTemplate(object) => {
                let kind = object.types.as_ref().unwrap().kind.clone();
                let template = Template { kind, name: object.name_any(), deleting: false };
                let known = scope.templates.contains(&template);
                scope.templates.retain(|other| *other != template);
                scope.templates.push(template);
                !known
            }
            Action::ApplyCapiCluster(_) | Action::ApplyBootstrapTemplate(_) | Action::ApplyHealthCheck(_) => {
                false
            }
            Action::DeleteDeployment(name) => {
                scope.deployments.retain(|deployment| deployment.name_any() != *name);
                true
            }
            Action::DeleteHealthCheck(name) => {
                scope.health_checks.retain(|check| check.name_any() != *name);
                true
            }
            Action::DeleteTemplate { name, .. } => {
                scope.templates.retain(|template| template.name != *name);
                true
            }
            Action::CreateKubeconfig(secret) | Action::ApplyKubeconfig(secret) => {
                put(&mut scope.kubeconfig, secret.as_ref().clone())
            }
        }
    }

    fn edit_deployment(&mut self, name: &str, edit: impl FnOnce(&mut MachineDeployment)) -> bool {
        let mut all = self.scope.deployments.iter_mut();
        let Some(live) = all.find(|deployment| deployment.name_any() == name) else { return false };
        let before = live.as_ref().clone();
        edit(Arc::make_mut(live));
        *live.as_ref() != before
    }

    fn happens(&mut self, event: &Event) {
        let scope = &mut self.scope;
        let cluster = Arc::make_mut(&mut scope.cluster);
        let pools = &mut cluster.spec.rke_config.as_mut().unwrap().machine_pools;
        match event {
            Event::Quantity(pool, quantity) if *pool < pools.len() => pools[*pool].quantity = *quantity,
            Event::Scaled(index, replicas) if *index < scope.deployments.len() => {
                Arc::make_mut(&mut scope.deployments[*index]).spec.replicas = Some(*replicas);
            }
            Event::Quantity(..) | Event::Scaled(..) => {}
            Event::RemovedPool => _ = pools.pop(),
            Event::Version(version) => (*version).clone_into(&mut cluster.spec.kubernetes_version),
            Event::Chosen(id) => {
                cluster
                    .annotations_mut()
                    .insert(annotations::MANAGEMENT_CLUSTER_NAME.to_owned(), (*id).to_owned());
            }
            Event::StatusName(id) => {
                cluster.status.get_or_insert_default().cluster_name = (*id).to_owned();
            }
            Event::ForeignTwin => {
                let twin = json!({"metadata": {"name": "c-m-chosen12"}, "spec": {"displayName": "other"}});
                scope.evidence.twin = Some(Arc::new(serde_json::from_value(twin).unwrap()));
            }
            Event::ForeignNamespace => {
                let namespace = json!({"metadata": {"name": "c-m-chosen12"}});
                scope.evidence.namespace = Some(Arc::new(serde_json::from_value(namespace).unwrap()));
            }
            Event::NoFinalizers => cluster.metadata.finalizers = None,
            Event::NoConfig => _ = scope.sources.configs.pop_last(),
            Event::ForeignConfig => {
                let mut foreign = config("nc-w").as_ref().clone();
                let owners = json!([{"apiVersion": "v1", "kind": "Cluster", "name": "other", "uid": "u"}]);
                foreign.metadata.owner_references = serde_json::from_value(owners).unwrap();
                let key = ("LocalConfig".to_owned(), "nc-w".to_owned());
                scope.sources.configs.insert(key, Arc::new(foreign));
            }
            Event::Recorded => {
                pools
                    .iter_mut()
                    .for_each(|pool| pool.dynamic_schema_spec = r#"{"resourceFields":{}}"#.into());
                scope.recorded_pools = Some(pools.clone());
            }
            Event::Unlisted => {
                scope.unlisted = if scope.unlisted.is_some() { None } else { Some("LocalConfig".into()) };
            }
            Event::Ready(ready) => {
                let status = if *ready { "True" } else { "Unknown" };
                let status = json!({"conditions": [{"type": "Ready", "status": status, "message": "m"}]});
                let mut plane =
                    scope.control_plane.as_deref().cloned().unwrap_or_else(RKEControlPlane::default);
                plane.status = serde_json::from_value(status).unwrap();
                scope.control_plane = Some(Arc::new(plane));
            }
            Event::Connected => {
                if let Some(twin) = &mut scope.evidence.twin {
                    let status = json!({"conditions": [{"type": "Connected", "status": "True"}]});
                    Arc::make_mut(twin).status = serde_json::from_value(status).unwrap();
                }
            }
            Event::NoKubeconfig => scope.kubeconfig = None,
            Event::Leftovers => {
                let template =
                    Template { kind: "LocalMachineTemplate".into(), name: "old".into(), deleting: false };
                scope.templates.push(template);
            }
        }
    }
}

/// Puts an object in the place of another; whether that is a change.
fn put<K: Clone + PartialEq>(live: &mut Option<Arc<K>>, next: K) -> bool {
    let changed = live.as_deref() != Some(&next);
    *live = Some(Arc::new(next));
    changed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn passes_come_to_an_end_from_any_state(events in vec((event(), any::<bool>()), 0..12), settled in any::<bool>()) {
        let mut world = World::new();
        if settled {
            assert!((0..MOST).any(|_| !world.pass()), "no end");
        }
        for (event, pass) in &events {
            world.happens(event);
            if *pass {
                world.pass();
            }
        }
        let passes = (0..MOST).take_while(|_| world.pass()).count();
        prop_assert!(passes < MOST, "no end: {:#?}", decide(&world.scope));
        prop_assert!(!world.pass(), "a settled cluster is written again");
    }
}
