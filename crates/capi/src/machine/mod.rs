//! Machine: bootstrap data and a server become a Node; on deletion, the other way round.
//!
//! `observe` reads caches, `decide` and `deletion` say what should be, `apply` writes, `status` reports.

mod apply;
pub mod decide;
pub mod deletion;
pub mod drain;
pub mod events;
pub mod node;
mod observe;
pub mod scope;
pub mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine};
use drover_api::labels::capi as labels;
use drover_runtime::apply::Applier;
use drover_runtime::events::Recorder;
use drover_runtime::{Clock, Controller, Error, Next, ObjectKey, Reconciler};
use kube::{Client, ResourceExt};

use crate::external::{Externals, INDEX, index_values};
use crate::manager::CoreCaches;
use crate::manager::shell::{self, Refers};
use crate::meta;
use crate::workload::Workload;

/// Reconciles Machines.
pub struct MachineController {
    caches: CoreCaches,
    client: Client,
    externals: Externals,
    workload: Arc<dyn Workload>,
    clock: Arc<dyn Clock>,
    events: Recorder,
    spec: Applier,
    status: Applier,
}

impl MachineController {
    /// The controller with everything that wakes it.
    pub fn controller(
        client: Client,
        caches: CoreCaches,
        externals: Externals,
        workload: Arc<dyn Workload>,
        clock: Arc<dyn Clock>,
    ) -> Controller<Self> {
        caches.machines.index(INDEX, |machine: &Machine| {
            index_values(machine.namespace().as_deref(), machine.references())
        });
        caches
            .machines
            .index("provider-id", |machine: &Machine| machine.spec.provider_id.iter().cloned().collect());
        let controller = Controller::new(Self {
            spec: Applier::new(client.clone(), Self::NAME, "spec"),
            status: Applier::new(client.clone(), Self::NAME, "status").paced(),
            events: Recorder::new(client.clone(), clock.clone(), "drover-machine"),
            caches: caches.clone(),
            client,
            externals: externals.clone(),
            workload: workload.clone(),
            clock,
        });
        let queue = controller.queue();
        let machines = caches.machines.clone();
        externals.on_change(move |value| {
            machines.by_index(INDEX, value).iter().for_each(|machine| queue.add(ObjectKey::of(&**machine)));
        });
        let queue = controller.queue();
        let machines = caches.machines.clone();
        workload.on_change(Box::new(move |change| {
            let of_cluster =
                machines.by_label(labels::CLUSTER_NAME, &change.cluster.namespace, &change.cluster.name);
            for machine in of_cluster {
                // A Machine that does not know its Node yet may be waiting for just this one.
                let known = machine.spec.provider_id.as_ref();
                if change.provider_id.is_none() || known.is_none() || known == change.provider_id.as_ref() {
                    queue.add(ObjectKey::of(&*machine));
                }
            }
        }));
        let siblings = caches.machines.clone();
        let all = caches.machines.clone();
        controller
            .concurrency(64)
            .reconciles(&caches.machines)
            .watches(&caches.clusters, move |change| {
                let key = change.key;
                // The status of a Cluster counts its Machines and changes with each of them. Only those that go may wait for
                // what it says.
                let all = meta::is_beyond_status(change);
                siblings
                    .by_label(labels::CLUSTER_NAME, &key.namespace, &key.name)
                    .iter()
                    .filter(|m| all || meta::is_deleting(&m.metadata))
                    .map(|m| ObjectKey::of(&**m))
                    .collect::<Vec<_>>()
            })
            .watches(externals.crds(), move |change| shell::external_users(&all, change))
    }
}

impl Refers for Machine {
    fn references(&self) -> Vec<&ContractVersionedObjectReference> {
        self.spec.bootstrap.config_ref.iter().chain([&self.spec.infrastructure_ref]).collect()
    }
}

impl Reconciler for MachineController {
    const NAME: &'static str = "machine";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(machine) = self.caches.machines.get(&key) else { return Ok(Next::EVENT) };
        let scope = self.observe(&machine).await;
        let now = self.clock.now();
        let decision = decide::decide(&scope, now);
        let applied = self.apply(&scope, &decision).await;
        let removed = decision.actions.contains(&decide::Action::RemoveFinalizer);
        if applied.is_ok() && removed {
            return Ok(Next::EVENT);
        }
        let error = applied.as_ref().err().filter(|error| !error.is_conflict()).map(Error::chain);
        let status = status::status(&scope, &decision, error.as_deref(), now);
        let next =
            [decision.next, status::next_available(&machine, &status, now)].into_iter().flatten().min();
        let mut desired = Machine::new(&key.name, machine.spec.clone());
        desired.metadata.namespace = machine.namespace();
        let notes = events::events(&scope, &decision, &status, now);
        desired.status = Some(status);
        shell::ignore_gone(self.status.apply_status(&desired, Some(&machine)).await)?;
        self.events.tell(&*machine, &notes);
        applied?;
        shell::all_listed([&scope.bootstrap, &scope.infra, &scope.control_plane])?;
        Ok(shell::next(next))
    }
}
