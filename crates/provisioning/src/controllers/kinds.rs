//! Controllers of the kinds that machine drivers bring: they come and go with their CRDs.

use std::collections::HashMap;
use std::sync::Arc;

use drover_api::capi::v1beta2::Cluster;
use drover_runtime::queue::WorkQueue;
use drover_runtime::{Cache, Controller, ObjectKey};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::with_settings;
use crate::context::Context;
use crate::dynamic::{CONFIG_GROUP, MACHINE_GROUP, is_established, resource_of};
use crate::keys::labels;
use crate::machine::provision::observe::{cluster_gates, machine_gates};
use crate::machine::provision::{MachineProvision, namesake};
use crate::owner::owner_name;
use crate::store::{BY_CONFIG, Store, config_value};

/// The controllers that run now, by CRD, and what they are given.
pub(super) struct Kinds {
    pub(super) context: Context,
    pub(super) init_queue: WorkQueue<ObjectKey>,
    pub(super) nodes_queue: WorkQueue<ObjectKey>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    pub(super) running: Mutex<HashMap<String, CancellationToken>>,
}

/// Starts and ends controllers as CRDs are established and deleted.
pub(super) fn follow_kinds(kinds: Arc<Kinds>, store: &Store) {
    store.crds.subscribe(move |change| {
        let Some(crd) = change.either() else { return };
        if change.new.is_some_and(|crd| is_established(crd)) {
            kinds.start(crd);
        } else if change.new.is_none() {
            kinds.end(crd);
        }
    });
}

impl Kinds {
    fn start(&self, crd: &CustomResourceDefinition) {
        let (group, kind) = (crd.spec.group.as_str(), crd.spec.names.kind.as_str());
        let is_config = group == CONFIG_GROUP;
        let is_machine = group == MACHINE_GROUP && kind.ends_with("Machine");
        let Some(resource) = resource_of(crd).filter(|_| is_config || is_machine) else { return };
        let mut running = self.running.lock();
        if running.contains_key(&crd.name_any()) {
            return;
        }
        let stop = self.stop.child_token();
        running.insert(crd.name_any(), stop.clone());
        drop(running);
        let cache = self.context.store.caches.dynamic(&resource);
        if is_config { self.follow_configs(kind, &cache) } else { self.provision(&resource, &cache, stop) }
    }

    fn end(&self, crd: &CustomResourceDefinition) {
        if let Some(stop) = self.running.lock().remove(&crd.name_any()) {
            stop.cancel();
            if let Some(resource) = resource_of(crd) {
                self.context.store.caches.end_dynamic(&resource);
            }
        }
    }

    /// A Config that comes or changes concerns the clusters beside it that name it.
    fn follow_configs(&self, kind: &str, cache: &Cache<DynamicObject>) {
        let (clusters, queue) = (self.context.store.clusters.clone(), self.init_queue.clone());
        let kind = kind.to_owned();
        cache.subscribe(move |change| {
            for cluster in clusters.by_index(BY_CONFIG, &config_value(&kind, change.key)) {
                queue.add(ObjectKey::of(cluster.as_ref()));
            }
        });
    }

    fn provision(&self, resource: &ApiResource, cache: &Cache<DynamicObject>, stop: CancellationToken) {
        let store = &self.context.store;
        let wanted = resource.kind.clone();
        let for_jobs = wanted.clone();
        let clusters_kind = wanted.clone();
        let (machines, others) = (store.machines.clone(), cache.clone());
        let controller = Controller::new(MachineProvision::new(&self.context, resource, cache));
        let controller = with_settings(controller, store, cache)
            .reconciles(cache)
            .watches(cache, move |change| {
                // Machines may have waited for the name of one that is deleted.
                let deleted = change.old.filter(|_| change.new.is_none());
                let claims = deleted.map(|object| namesake::claims(object)).unwrap_or_default();
                let waiting = claims.iter().flat_map(|claim| others.by_index(namesake::INDEX, claim));
                waiting.map(|object| ObjectKey::of(object.as_ref())).collect::<Vec<_>>()
            })
            .watches(&store.machines, move |change| {
                let reference = &change.either()?.spec.infrastructure_ref;
                let same =
                    change.old.map(|old| machine_gates(old)) == change.new.map(|new| machine_gates(new));
                (reference.kind == wanted && !same).then(|| change.key.sibling(&reference.name))
            })
            .watches(&store.capi_clusters, move |change| {
                // A Cluster's status counts its machines and changes with each of them.
                let gates = |cluster: Option<&Arc<Cluster>>| cluster.map(|cluster| cluster_gates(cluster));
                if gates(change.old) == gates(change.new) {
                    return vec![];
                }
                let machines =
                    machines.by_label(labels::capi::CLUSTER_NAME, &change.key.namespace, &change.key.name);
                machines
                    .iter()
                    .map(|machine| &machine.spec.infrastructure_ref)
                    .filter(|reference| reference.kind == clusters_kind)
                    .map(|reference| change.key.sibling(&reference.name))
                    .collect::<Vec<_>>()
            })
            .watches(&store.jobs, move |change| {
                let job = change.either()?;
                let is_ours =
                    job.labels().get(labels::INFRA_MACHINE_KIND).is_some_and(|kind| *kind == for_jobs);
                let name = change.key.name.strip_suffix("-machine-provision").map(str::to_owned);
                name.or_else(|| job.labels().get(labels::INFRA_MACHINE_NAME).cloned())
                    .filter(|_| is_ours)
                    .map(|name| change.key.sibling(name))
            });
        // An infra machine that becomes ready is a reason to look for its Node.
        let (nodes, machines) = (self.nodes_queue.clone(), store.machines.clone());
        cache.subscribe(move |change| {
            let Some(object) = change.new else { return };
            if let Some(name) = owner_name(&object.metadata, "cluster.x-k8s.io", "Machine") {
                let key = change.key.sibling(name);
                if machines.get(&key).is_some() {
                    nodes.add(key);
                }
            }
        });
        self.tasks.spawn(controller.run(stop));
    }
}
