//! Cluster: copies values from the providers, and orders the deletion.

pub mod decide;
pub mod events;
pub mod scope;
pub mod status;
#[cfg(test)]
mod tests;

mod apply;
mod observe;

use std::sync::Arc;

use drover_access_api::ClusterAccess;
use drover_api::capi::v1beta2::{Cluster, ContractVersionedObjectReference};
use drover_api::labels::capi as labels;
use drover_runtime::apply::Applier;
use drover_runtime::events::Recorder;
use drover_runtime::{Clock, Controller, Error, Next, ObjectKey, Reconciler};
use kube::{Client, ResourceExt};

use crate::external::{Externals, INDEX, index_values};
use crate::manager::CoreCaches;
use crate::manager::shell::{self, Refers};
use crate::meta;

/// Reconciles Clusters.
pub struct ClusterController {
    caches: CoreCaches,
    client: Client,
    externals: Externals,
    access: Arc<dyn ClusterAccess>,
    clock: Arc<dyn Clock>,
    events: Recorder,
    spec: Applier,
    status: Applier,
}

impl ClusterController {
    /// The controller with its watches.
    pub fn controller(
        client: Client,
        caches: CoreCaches,
        externals: Externals,
        access: Arc<dyn ClusterAccess>,
        clock: Arc<dyn Clock>,
    ) -> Controller<Self> {
        caches.clusters.index(INDEX, |cluster: &Cluster| {
            index_values(cluster.namespace().as_deref(), cluster.references())
        });
        let controller = Controller::new(Self {
            spec: Applier::new(client.clone(), Self::NAME, "spec"),
            status: Applier::new(client.clone(), Self::NAME, "status")
                .paced_with(&["controlPlane", "workers"]),
            events: Recorder::new(client.clone(), clock.clone(), "drover-cluster"),
            caches: caches.clone(),
            client,
            externals: externals.clone(),
            access: access.clone(),
            clock,
        });
        let queue = controller.queue();
        let clusters = caches.clusters.clone();
        externals.on_change(move |value| {
            clusters.by_index(INDEX, value).iter().for_each(|cluster| queue.add(ObjectKey::of(&**cluster)));
        });
        let queue = controller.queue();
        access.on_change(Box::new(move |change| {
            // Nodes only affect Machines.
            if change.node.is_none() {
                queue.add(change.cluster.clone());
            }
        }));
        let all = caches.clusters.clone();
        controller
            .concurrency(32)
            .reconciles(&caches.clusters)
            .watches(&caches.machines, |change| {
                by_cluster(change.key, change.either().map(|object| &object.metadata))
            })
            .watches(&caches.machine_sets, |change| {
                by_cluster(change.key, change.either().map(|object| &object.metadata))
            })
            .watches(&caches.machine_deployments, |change| {
                by_cluster(change.key, change.either().map(|object| &object.metadata))
            })
            .watches(externals.crds(), move |change| shell::external_users(&all, change))
    }
}

fn by_cluster(key: &ObjectKey, meta: Option<&kube::api::ObjectMeta>) -> Option<ObjectKey> {
    meta::label(meta?, labels::CLUSTER_NAME).map(|name| key.sibling(name))
}

impl Refers for Cluster {
    fn references(&self) -> Vec<&ContractVersionedObjectReference> {
        self.spec.infrastructure_ref.iter().chain(&self.spec.control_plane_ref).collect()
    }
}

impl Reconciler for ClusterController {
    const NAME: &'static str = "cluster";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(cluster) = self.caches.clusters.get(&key) else { return Ok(Next::EVENT) };
        let scope = self.observe(&cluster).await;
        let now = self.clock.now();
        let decision = decide::decide(&scope);
        let applied = self.apply(&scope, &decision).await;
        if applied.is_ok() && decision.actions.contains(&decide::Action::RemoveFinalizer) {
            return Ok(Next::EVENT);
        }
        let error = applied.as_ref().err().filter(|error| !error.is_conflict()).map(Error::chain);
        let mut desired = Cluster::new(&key.name, cluster.spec.clone());
        desired.metadata.namespace = cluster.namespace();
        let status = status::status(&scope, &decision, error.as_deref(), now);
        let notes = events::events(&scope, &decision, &status);
        desired.status = Some(status);
        shell::ignore_gone(self.status.apply_status(&desired, Some(&cluster)).await)?;
        self.events.publish(&*cluster, &notes);
        applied?;
        shell::all_listed([&scope.infra, &scope.control_plane])?;
        Ok(Next::EVENT)
    }
}
