//! Controllers of the kinds that machine drivers bring: they come and go with their CRDs.

use std::collections::HashMap;
use std::sync::Arc;

use drover_runtime::queue::WorkQueue;
use drover_runtime::{Cache, Controller, ObjectKey};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::DynamicObject;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::with_settings;
use crate::context::Context;
use crate::keys::labels;
use crate::machine::provision::controller::MachineProvision;
use crate::owner::owner_name;
use crate::store::{Store, resource};

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

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

impl Kinds {
    fn start(&self, crd: &CustomResourceDefinition) {
        let (group, kind) = (crd.spec.group.as_str(), crd.spec.names.kind.as_str());
        let is_config = group == "rke-machine-config.cattle.io";
        let is_machine = group == "rke-machine.cattle.io" && kind.ends_with("Machine");
        if !is_config && !is_machine {
            return;
        }
        let mut running = self.running.lock();
        if running.contains_key(&crd.name_any()) {
            return;
        }
        let stop = self.stop.child_token();
        running.insert(crd.name_any(), stop.clone());
        drop(running);
        let cache = self.context.store.caches.dynamic(&resource(&format!("{group}/v1"), kind));
        if is_config { self.follow_configs(&cache) } else { self.provision(kind, &cache, stop) }
    }

    fn end(&self, crd: &CustomResourceDefinition) {
        if let Some(stop) = self.running.lock().remove(&crd.name_any()) {
            stop.cancel();
            let api_version = format!("{}/v1", crd.spec.group);
            self.context.store.caches.end_dynamic(&resource(&api_version, &crd.spec.names.kind));
        }
    }

    /// A Config that comes or changes concerns the clusters beside it that name it.
    fn follow_configs(&self, cache: &Cache<DynamicObject>) {
        let (clusters, queue) = (self.context.store.clusters.clone(), self.init_queue.clone());
        cache.subscribe(move |change| {
            for cluster in clusters.list() {
                let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
                let named =
                    pools.into_iter().any(|p| p.machine_config_ref.name.as_deref() == Some(&change.key.name));
                if named && cluster.namespace().as_deref() == Some(&change.key.namespace) {
                    queue.add(ObjectKey::of(cluster.as_ref()));
                }
            }
        });
    }

    fn provision(&self, kind: &str, cache: &Cache<DynamicObject>, stop: CancellationToken) {
        let store = &self.context.store;
        let wanted = kind.to_owned();
        let for_jobs = wanted.clone();
        let clusters_kind = wanted.clone();
        let machines = store.machines.clone();
        let controller = Controller::new(MachineProvision::new(&self.context, kind, cache));
        let controller = with_settings(controller, store, cache)
            .reconciles(cache)
            .watches(&store.machines, move |change| {
                let reference = &change.either()?.spec.infrastructure_ref;
                (reference.kind == wanted).then(|| change.key.sibling(&reference.name))
            })
            .watches(&store.capi_clusters, move |change| {
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
