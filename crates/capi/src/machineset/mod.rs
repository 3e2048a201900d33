//! MachineSet: keeps a number of equal Machines.
//!
//! `observe` reads caches, `decide` computes how many Machines are created or deleted, `clone` their content, `apply`
//! writes, `status` reports. A pass starts only after the cache contains the writes of the previous pass, so that no
//! Machine is created twice.

mod apply;
pub mod clone;
pub mod decide;
pub mod events;
pub mod naming;
mod observe;
pub mod preflight;
pub mod scope;
pub mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine, MachineSet};
use drover_api::labels::capi as labels;
use drover_runtime::apply::Applier;
use drover_runtime::events::Recorder;
use drover_runtime::{Change, Clock, Controller, Error, Expectations, Next, ObjectKey, Reconciler};
use kube::{Client, ResourceExt};
use rand::RngExt;

use crate::apply::FIRST_STATUS;
use crate::external::{Externals, INDEX, index_values};
use crate::manager::CoreCaches;
use crate::manager::shell::{self, Refers};
use crate::meta;

/// Reconciles MachineSets.
pub struct MachineSetController {
    caches: CoreCaches,
    client: Client,
    externals: Externals,
    clock: Arc<dyn Clock>,
    events: Recorder,
    metadata: Applier,
    machines: Applier,
    /// Field manager of the objects that are cloned from templates.
    clone_manager: String,
    status: Applier,
    expected: Expectations,
}

impl MachineSetController {
    /// The controller with its watches.
    pub fn controller(
        client: Client,
        caches: CoreCaches,
        externals: Externals,
        clock: Arc<dyn Clock>,
    ) -> Controller<Self> {
        caches
            .machine_sets
            .index(INDEX, |set: &MachineSet| index_values(set.namespace().as_deref(), set.references()));
        let applier = |scope| Applier::new(client.clone(), Self::NAME, scope);
        let controller = Controller::new(Self {
            events: Recorder::new(client.clone(), clock.clone(), "drover-machineset"),
            metadata: applier("metadata"),
            machines: applier("machine"),
            clone_manager: applier("clone").manager().to_owned(),
            status: applier("status").paced_with(&["upToDateReplicas"]).first_after(FIRST_STATUS),
            caches: caches.clone(),
            client: client.clone(),
            externals: externals.clone(),
            clock,
            expected: Expectations::default(),
        });
        let queue = controller.queue();
        let sets = caches.machine_sets.clone();
        externals.on_change(move |value| {
            sets.by_index(INDEX, value).iter().for_each(|set| queue.add(ObjectKey::of(&**set)));
        });
        let (of_machine, of_cluster, all) =
            (caches.machine_sets.clone(), caches.machine_sets.clone(), caches.machine_sets.clone());
        controller
            .concurrency(32)
            .reconciles(&caches.machine_sets)
            .watches(&caches.machines, move |change: &Change<'_, Machine>| {
                let owners = [change.old, change.new].into_iter().flatten().filter_map(|machine| {
                    let owner = meta::controller_of(&machine.metadata)?;
                    meta::is_core_owner(owner, "MachineSet").then(|| change.key.sibling(&owner.name))
                });
                let mut keys: Vec<ObjectKey> = owners.collect();
                if let Some(machine) = change.new
                    && meta::controller_of(&machine.metadata).is_none()
                {
                    // A Machine without a controller may belong to any set of its cluster.
                    let sets = of_machine.by_label(
                        labels::CLUSTER_NAME,
                        &change.key.namespace,
                        &machine.spec.cluster_name,
                    );
                    keys.extend(sets.iter().map(|set| ObjectKey::of(&**set)));
                }
                keys
            })
            .watches(&caches.clusters, move |change| {
                let sets = of_cluster.by_label(labels::CLUSTER_NAME, &change.key.namespace, &change.key.name);
                sets.iter().map(|set| ObjectKey::of(&**set)).collect::<Vec<_>>()
            })
            .watches(&caches.machine_deployments, {
                let sets = caches.machine_sets.clone();
                move |change| {
                    let uid = change.either().and_then(|deployment| deployment.uid()).unwrap_or_default();
                    sets.by_index("owner", &uid).iter().map(|set| ObjectKey::of(&**set)).collect::<Vec<_>>()
                }
            })
            .watches(externals.crds(), move |change| shell::external_users(&all, change))
    }
}

impl Refers for MachineSet {
    fn references(&self) -> Vec<&ContractVersionedObjectReference> {
        let template = &self.spec.template.spec;
        template.bootstrap.config_ref.iter().chain([&template.infrastructure_ref]).collect()
    }
}

impl Reconciler for MachineSetController {
    const NAME: &'static str = "machineset";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(set) = self.caches.machine_sets.get(&key) else {
            self.expected.forget(&key);
            return Ok(Next::EVENT);
        };
        self.expected.met(&*set, &self.caches.machines).await?;
        let scope = self.observe(&set).await?;
        let now = self.clock.now();
        let decision = decide::decide(&scope, now, &mut random_suffix);
        let applied = self.apply(&scope, &decision).await;
        if applied.is_ok() && decision.actions.contains(&decide::Action::RemoveFinalizer) {
            return Ok(Next::EVENT);
        }
        let error = applied.as_ref().err().filter(|error| !error.is_conflict()).map(Error::chain);
        let error = error.map(|error| events::alike(&decision, &error));
        let mut desired = MachineSet::new(&key.name, set.spec.clone());
        desired.metadata.namespace = set.namespace();
        desired.status = Some(status::status(&scope, &decision, error.as_deref(), now));
        self.events.publish(&*set, &events::events(&decision));
        shell::ignore_gone(self.status.apply_status(&desired, Some(&set)).await)?;
        applied?;
        shell::all_listed([&scope.bootstrap_template, &scope.infra_template, &scope.control_plane])?;
        Ok(shell::next(decision.next))
    }
}

fn random_suffix() -> String {
    let mut rng = rand::rng();
    naming::suffix(|below| rng.random_range(0..below))
}
