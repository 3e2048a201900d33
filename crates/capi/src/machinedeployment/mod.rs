//! MachineDeployment: rolls Machines from one template to the next.
//!
//! `decide` finds the newest set, `rollout` computes how many Machines each set has, `template` defines the content
//! of a set, `apply` writes, `status` reports.

mod apply;
pub mod decide;
pub mod events;
mod observe;
pub mod rollout;
pub mod scope;
pub mod status;
mod template;
#[cfg(test)]
mod tests;

pub use template::{SetPlan, machine_set, template_differences};

use std::collections::HashMap;
use std::sync::Arc;

use drover_api::capi::v1beta2::{ContractVersionedObjectReference, MachineDeployment, MachineSet};
use drover_api::labels::capi as labels;
use drover_runtime::apply::Applier;
use drover_runtime::events::Recorder;
use drover_runtime::{Change, Clock, Controller, Error, Expectations, Next, ObjectKey, Reconciler};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use rand::RngExt;

use crate::apply::FIRST_STATUS;
use crate::external::{Externals, INDEX, index_values};
use crate::machineset::naming;
use crate::manager::CoreCaches;
use crate::manager::shell::{self, Refers};
use crate::meta;

/// Reconciles MachineDeployments.
pub struct MachineDeploymentController {
    caches: CoreCaches,
    client: Client,
    externals: Externals,
    clock: Arc<dyn Clock>,
    events: Recorder,
    metadata: Applier,
    sets: Applier,
    status: Applier,
    expected: Expectations,
    /// The suffixes of sets whose creation failed. The answer may be all that was lost: the next pass takes the same name,
    /// or two sets would create the Machines.
    suffixes: Mutex<HashMap<ObjectKey, String>>,
}

impl MachineDeploymentController {
    /// The controller with its watches.
    pub fn controller(
        client: Client,
        caches: CoreCaches,
        externals: Externals,
        clock: Arc<dyn Clock>,
    ) -> Controller<Self> {
        caches.machine_deployments.index(INDEX, |deployment: &MachineDeployment| {
            index_values(deployment.namespace().as_deref(), deployment.references())
        });
        let applier = |scope| Applier::new(client.clone(), Self::NAME, scope);
        let controller = Controller::new(Self {
            events: Recorder::new(client.clone(), clock.clone(), "drover-machinedeployment"),
            metadata: applier("metadata"),
            sets: applier("machineset"),
            status: applier("status").paced_with(&["upToDateReplicas"]).first_after(FIRST_STATUS),
            caches: caches.clone(),
            client: client.clone(),
            externals: externals.clone(),
            clock,
            expected: Expectations::default(),
            suffixes: Mutex::default(),
        });
        let queue = controller.queue();
        let deployments = caches.machine_deployments.clone();
        externals.on_change(move |value| {
            deployments
                .by_index(INDEX, value)
                .iter()
                .for_each(|deployment| queue.add(ObjectKey::of(&**deployment)));
        });
        let (of_set, of_cluster, all) = (
            caches.machine_deployments.clone(),
            caches.machine_deployments.clone(),
            caches.machine_deployments.clone(),
        );
        controller
            .concurrency(32)
            .reconciles(&caches.machine_deployments)
            .watches(&caches.machine_sets, move |change: &Change<'_, MachineSet>| {
                let owners = [change.old, change.new].into_iter().flatten().filter_map(|set| {
                    let owner = meta::controller_of(&set.metadata)?;
                    meta::is_core_owner(owner, "MachineDeployment").then(|| change.key.sibling(&owner.name))
                });
                let mut keys: Vec<ObjectKey> = owners.collect();
                if let Some(set) = change.new
                    && meta::controller_of(&set.metadata).is_none()
                {
                    let found =
                        of_set.by_label(labels::CLUSTER_NAME, &change.key.namespace, &set.spec.cluster_name);
                    keys.extend(found.iter().map(|deployment| ObjectKey::of(&**deployment)));
                }
                keys
            })
            .watches(&caches.machines, |change| {
                // Their conditions are aggregated in the deployment's.
                let name = change
                    .either()
                    .and_then(|m| meta::label(&m.metadata, labels::DEPLOYMENT_NAME).map(str::to_owned));
                name.map(|name| change.key.sibling(name))
            })
            .watches(&caches.clusters, move |change| {
                let found =
                    of_cluster.by_label(labels::CLUSTER_NAME, &change.key.namespace, &change.key.name);
                found.iter().map(|deployment| ObjectKey::of(&**deployment)).collect::<Vec<_>>()
            })
            .watches(externals.crds(), move |change| shell::external_users(&all, change))
    }
}

impl Refers for MachineDeployment {
    fn references(&self) -> Vec<&ContractVersionedObjectReference> {
        let template = &self.spec.template.spec;
        template.bootstrap.config_ref.iter().chain([&template.infrastructure_ref]).collect()
    }
}

impl Reconciler for MachineDeploymentController {
    const NAME: &'static str = "machinedeployment";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(deployment) = self.caches.machine_deployments.get(&key) else {
            self.expected.forget(&key);
            self.suffixes.lock().remove(&key);
            return Ok(Next::EVENT);
        };
        self.expected.met(&*deployment, &self.caches.machine_sets).await?;
        let scope = self.observe(&deployment).await;
        let now = self.clock.now();
        let suffix = self.suffixes.lock().get(&key).cloned().unwrap_or_else(|| {
            let mut rng = rand::rng();
            naming::suffix(|below| rng.random_range(0..below))
        });
        let decision = decide::decide(&scope, now, &mut || suffix.clone());
        let applied = self.apply(&scope, &decision).await;
        match &applied {
            Ok(()) => self.suffixes.lock().remove(&key),
            Err(_) => self.suffixes.lock().insert(key.clone(), suffix),
        };
        if applied.is_ok() && decision.actions.contains(&decide::Action::RemoveFinalizer) {
            return Ok(Next::EVENT);
        }
        let error = applied.as_ref().err().filter(|error| !error.is_conflict()).map(Error::chain);
        let error = error.map(|error| events::alike(&decision, &error));
        let mut desired = MachineDeployment::new(&key.name, deployment.spec.clone());
        desired.metadata.namespace = deployment.namespace();
        desired.status = Some(status::status(&scope, &decision, error.as_deref(), now));
        self.events.publish(&*deployment, &events::events(&decision));
        shell::ignore_gone(self.status.apply_status(&desired, Some(&deployment)).await)?;
        applied?;
        shell::all_listed([&scope.bootstrap_template, &scope.infra_template])?;
        Ok(shell::next(decision.next))
    }
}
