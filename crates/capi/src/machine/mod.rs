//! Machine: bootstrap data and a server become a Node; deletion removes them in reverse order.
//!
//! `observe` reads caches, `decide` and `deletion` decide, `apply` writes, `status` reports.

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

use std::collections::BTreeSet;
use std::sync::Arc;

use drover_access_api::{ClusterAccess, ClusterChange, provider_id};
use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine};
use drover_api::labels::capi as labels;
use drover_runtime::apply::Applier;
use drover_runtime::events::Recorder;
use drover_runtime::{Cache, Clock, Controller, Error, Next, ObjectKey, Reconciler};
use kube::{Client, ResourceExt};

use crate::external::{Externals, INDEX, index_values};
use crate::manager::CoreCaches;
use crate::manager::shell::{self, Refers};
use crate::meta;

/// Reconciles Machines.
pub struct MachineController {
    caches: CoreCaches,
    client: Client,
    externals: Externals,
    access: Arc<dyn ClusterAccess>,
    clock: Arc<dyn Clock>,
    events: Recorder,
    spec: Applier,
    status: Applier,
}

impl MachineController {
    /// The controller with its watches.
    pub fn controller(
        client: Client,
        caches: CoreCaches,
        externals: Externals,
        access: Arc<dyn ClusterAccess>,
        clock: Arc<dyn Clock>,
    ) -> Controller<Self> {
        caches.machines.index(INDEX, |machine: &Machine| {
            index_values(machine.namespace().as_deref(), machine.references())
        });
        caches.machines.index(NODES, node_values);
        let controller = Controller::new(Self {
            spec: Applier::new(client.clone(), Self::NAME, "spec"),
            status: Applier::new(client.clone(), Self::NAME, "status").paced_with(&["observedGeneration"]),
            events: Recorder::new(client.clone(), clock.clone(), "drover-machine"),
            caches: caches.clone(),
            client,
            externals: externals.clone(),
            access: access.clone(),
            clock,
        });
        let queue = controller.queue();
        let machines = caches.machines.clone();
        externals.on_change(move |value| {
            machines.by_index(INDEX, value).iter().for_each(|machine| queue.add(ObjectKey::of(&**machine)));
        });
        let queue = controller.queue();
        let machines = caches.machines.clone();
        access.on_change(Box::new(move |change| {
            machines_of(&machines, change).iter().for_each(|machine| queue.add(ObjectKey::of(&**machine)));
        }));
        let siblings = caches.machines.clone();
        let all = caches.machines.clone();
        controller
            .concurrency(64)
            .reconciles(&caches.machines)
            .watches(&caches.clusters, move |change| {
                let key = change.key;
                // The status of a Cluster counts its Machines and changes with each of them. Only Machines that are
                // being deleted may depend on it.
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

/// Finds Machines by the provider id and the name of their Node.
const NODES: &str = "capi/node";

fn node_value(cluster: &ObjectKey, kind: &str, value: &str) -> String {
    format!("{cluster}/{kind}/{value}")
}

fn node_values(machine: &Machine) -> Vec<String> {
    let cluster = ObjectKey::new(machine.namespace().unwrap_or_default(), &machine.spec.cluster_name);
    let name = machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| &node.name);
    let id = machine.spec.provider_id.as_ref().map(|id| node_value(&cluster, "id", id));
    id.into_iter().chain(name.map(|name| node_value(&cluster, "name", name))).collect()
}

/// The Machines that a change in a cluster affects: all of them if the connection changed, otherwise those of the
/// Node. A Machine without a provider id looks for its Node when it gets one.
fn machines_of(machines: &Cache<Machine>, change: &ClusterChange<'_>) -> Vec<Arc<Machine>> {
    let cluster = change.cluster;
    let Some(node) = change.node else {
        return machines.by_label(labels::CLUSTER_NAME, &cluster.namespace, &cluster.name);
    };
    let ids = change.nodes().filter_map(|node| provider_id(node)).map(|id| node_value(cluster, "id", id));
    let values: BTreeSet<String> = ids.chain([node_value(cluster, "name", &node.key.name)]).collect();
    let mut found: Vec<_> = values.iter().flat_map(|value| machines.by_index(NODES, value)).collect();
    found.sort_by_key(|machine| machine.name_any());
    found.dedup_by_key(|machine| machine.name_any());
    found
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
        let mut scope = self.observe(&machine).await;
        let now = self.clock.now();
        let decision = decide::decide(&scope, now);
        let applied = self.apply(&scope, &decision).await;
        let removed = decision.actions.contains(&decide::Action::RemoveFinalizer);
        if applied.is_ok() && removed {
            return Ok(Next::EVENT);
        }
        if let Ok(Some(generation)) = applied {
            // The status is about what was just written, too.
            scope.machine.metadata.generation = Some(generation);
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
        self.events.publish(&*machine, &notes);
        applied?;
        shell::all_listed([&scope.bootstrap, &scope.infra, &scope.control_plane])?;
        Ok(shell::next(next))
    }
}
