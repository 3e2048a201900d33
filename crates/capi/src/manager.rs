//! Runs the core controllers with shared caches.

use std::sync::Arc;

use drover_access_api::ClusterAccess;
use drover_api::capi::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use drover_api::labels::capi as labels;
use drover_runtime::{Cache, Caches, Clock};
use futures::FutureExt;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::cluster::ClusterController;
use crate::external::Externals;
use crate::machine::MachineController;
use crate::machinedeployment::MachineDeploymentController;
use crate::machinehealthcheck::MachineHealthCheckController;
use crate::machineset::MachineSetController;

/// The caches that the core controllers share.
#[derive(Clone)]
pub struct CoreCaches {
    /// Clusters.
    pub clusters: Cache<Cluster>,
    /// Machines.
    pub machines: Cache<Machine>,
    /// MachineSets.
    pub machine_sets: Cache<MachineSet>,
    /// MachineDeployments.
    pub machine_deployments: Cache<MachineDeployment>,
}

impl CoreCaches {
    /// Starts them.
    pub fn new(caches: &Caches) -> Self {
        let core = Self {
            clusters: caches.all(),
            machines: caches.all(),
            machine_sets: caches.all(),
            machine_deployments: caches.all(),
        };
        core.machines.index_by_label(labels::CLUSTER_NAME);
        core.machine_sets.index_by_label(labels::CLUSTER_NAME);
        core.machine_deployments.index_by_label(labels::CLUSTER_NAME);
        core.machines.index_by_owner();
        core.machine_sets.index_by_owner();
        core
    }

    /// Waits until every first list is complete; nothing is decided before.
    pub async fn synced(&self) {
        tokio::join!(
            self.clusters.synced(),
            self.machines.synced(),
            self.machine_sets.synced(),
            self.machine_deployments.synced()
        );
    }
}

/// Runs the core controllers until `stop`.
pub async fn run(
    caches: Caches,
    clusters: Arc<dyn ClusterAccess>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let core = CoreCaches::new(&caches);
    let externals = Externals::new(caches.clone());
    let checks = caches.all();
    let ready = async {
        core.synced().await;
        checks.synced().await;
        externals.crds().synced().await;
    };
    tokio::select! {
        () = ready => {}
        () = stop.cancelled() => return,
    }
    let client = caches.client().clone();
    let machine = MachineController::controller(
        client.clone(),
        core.clone(),
        externals.clone(),
        clusters.clone(),
        clock.clone(),
    );
    let set =
        MachineSetController::controller(client.clone(), core.clone(), externals.clone(), clock.clone());
    let deployment = MachineDeploymentController::controller(
        client.clone(),
        core.clone(),
        externals.clone(),
        clock.clone(),
    );
    let check = MachineHealthCheckController::controller(client.clone(), checks, clock.clone());
    let cluster = ClusterController::controller(client, core, externals, clusters, clock);
    join_all([
        machine.run(stop.clone()).boxed(),
        set.run(stop.clone()).boxed(),
        deployment.run(stop.clone()).boxed(),
        check.run(stop.clone()).boxed(),
        cluster.run(stop).boxed(),
    ])
    .await;
}

/// What the controllers share.
pub(crate) mod shell {
    use drover_api::capi::v1beta2::ContractVersionedObjectReference;
    use drover_runtime::cache::Cached;
    use drover_runtime::error::is_not_found;
    use drover_runtime::{Cache, Change, Error, Next, ObjectKey};
    use jiff::SignedDuration;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use crate::external::External;

    /// An object with references to providers' objects.
    pub(crate) trait Refers {
        fn references(&self) -> Vec<&ContractVersionedObjectReference>;
    }

    /// The objects that refer to the kind of a CRD: they are reconciled when it appears or its labels change.
    pub(crate) fn external_users<K: Cached + Refers>(
        cache: &Cache<K>,
        change: &Change<'_, CustomResourceDefinition>,
    ) -> Vec<ObjectKey> {
        let Some(crd) = change.either() else { return Vec::new() };
        // Changes of a CRD's status are ignored.
        if let (Some(old), Some(new)) = (change.old, change.new)
            && old.metadata.labels == new.metadata.labels
            && old.spec == new.spec
        {
            return Vec::new();
        }
        let uses = |object: &K| {
            object.references().iter().any(|r| r.api_group == crd.spec.group && r.kind == crd.spec.names.kind)
        };
        cache.list().iter().filter(|object| uses(object)).map(|object| ObjectKey::of(&**object)).collect()
    }

    /// Applies a status; a deleted object is not a failure.
    pub(crate) fn ignore_gone<T>(result: Result<T, Error>) -> Result<(), Error> {
        match result {
            Err(Error::Api { source, .. }) if is_not_found(&source) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// An error if a pass had incomplete information and must be repeated.
    pub(crate) fn all_listed<'a>(externals: impl IntoIterator<Item = &'a External>) -> Result<(), Error> {
        externals.into_iter().try_for_each(External::is_listed)
    }

    pub(crate) fn next(delay: Option<SignedDuration>) -> Next {
        delay.and_then(|delay| std::time::Duration::try_from(delay).ok()).map_or(Next::EVENT, Next::after)
    }
}
