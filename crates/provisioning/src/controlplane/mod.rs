//! Control plane provider: from an RKEControlPlane and its Machines to machine plans.
//!
//! `observe` reads caches into a [`scope::Scope`], [`decide`] says what to write and what is waited for, `apply` writes in
//! order and stops at the first failure, [`status`] reports last, with the error of a write that failed. [`planner`] holds
//! the parts of the decision, [`removal`] the deletion. The planner is the only writer of plan secrets besides the agents
//! and the drain ([`machinedrain`]).

mod apply;
pub mod change;
pub mod decide;
pub mod drain;
pub mod events;
pub mod machineconditions;
pub mod machinedrain;
pub mod manifest;
pub mod observe;
pub mod planner;
pub mod removal;
pub mod repairs;
pub mod scope;
pub mod status;
pub mod waitrecords;
pub mod waits;

use std::sync::Arc;
use std::time::Duration;

use drover_api::management::v3 as management;
use drover_api::rke::v1::RKEControlPlane;
use drover_api::secret_types;
use drover_runtime::events::Note;
use drover_runtime::{Change, Controller, Error, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Secret;

use self::decide::{End, decide};
use self::observe::authorized_for;
use self::repairs::Repairs;
use crate::conditions as generic;
use crate::context::Context;
use crate::controllers::{by_label, planes_of_twin, with_settings};
use crate::keys::{conditions, labels};
use crate::store::{Store, Writer, status_of};

/// Waits are ended by events; this only guards against a lost one.
const SAFETY: Duration = Duration::from_secs(30);

/// Index of Machines by the Secret in which the driver saves their addresses, as `namespace/name`.
const BY_STATE_SECRET: &str = "provisioning/state-secret";

/// Reconciles RKEControlPlanes.
pub struct Planner {
    context: Context,
    writer: Writer,
    /// Conditions of Machines are owned apart from everything else.
    machines: Writer,
    repairs: Repairs,
}

impl Planner {
    /// The controller with everything that wakes it.
    pub fn controller(context: &Context) -> Controller<Self> {
        let store = &context.store;
        let controller = Controller::new(Self {
            context: context.clone(),
            writer: Writer::new(store, "planner", "control-plane").paced(),
            machines: Writer::new(store, "planner", "machine").paced(),
            repairs: Repairs::default(),
        });
        store.machines.index(BY_STATE_SECRET, |machine| {
            let infra = &machine.spec.infrastructure_ref;
            let secret = observe::address_secret_name(&infra.name);
            let own = infra.api_group == observe::DRIVER_GROUP;
            own.then(|| ObjectKey::of(machine).sibling(secret).to_string()).into_iter().collect()
        });
        let by_twin = store.control_planes.clone();
        with_settings(controller, store, &store.control_planes)
            .reconciles(&store.control_planes)
            .reconciles(&store.capi_clusters)
            .watches(&store.machines, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
            .watches(&store.twins, move |change| {
                let connected = |twin: Option<&Arc<management::Cluster>>| {
                    let status = twin.and_then(|twin| twin.status.as_ref());
                    status.is_some_and(|s| generic::is_true(&s.conditions, conditions::CONNECTED))
                };
                let changed = connected(change.old) != connected(change.new);
                if changed { planes_of_twin(&by_twin, &change.key.name) } else { vec![] }
            })
            .watches(&store.secrets, clusters_of_files)
            .watches(&store.config_maps, clusters_of_files)
            .watches(&store.secrets, clusters_of_secret(store))
    }
}

impl Reconciler for Planner {
    const NAME: &'static str = "planner";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(control_plane) = self.context.store.control_planes.get(&key) else { return Ok(Next::EVENT) };
        if control_plane.metadata.deletion_timestamp.is_some() {
            return self.remove(&control_plane).await;
        }
        observe::require_files(&self.context.store, &control_plane)?;
        let now = self.context.now();
        let scope = observe::scope(&self.context, &self.repairs, &control_plane);
        let decision = decide(&scope, now);
        self.tell(&control_plane, &change::begun(&scope, &decision));
        let applied = self.apply(&control_plane, &scope, &decision).await;
        if applied.as_ref().is_err_and(Error::is_conflict) {
            // Decided on old objects: the next pass says how things are.
            return applied.map(|()| Next::EVENT);
        }
        if decision.end != End::Silent {
            let error = applied.as_ref().err().map(Error::chain);
            let next = status::status(&scope, &decision, error.as_deref(), now);
            let desired = status_of::<RKEControlPlane>(&key, next.clone());
            self.writer.apply_status(&desired).await?;
            let finished = change::finished(&scope, &decision).filter(|_| applied.is_ok());
            self.tell(&control_plane, finished.as_slice());
            self.context.events.publish(control_plane.as_ref(), &events::events(&scope, &next));
        }
        applied?;
        let again = self.context.next(decision.again);
        Ok(match &decision.end {
            End::Ready | End::Silent => again,
            End::Waiting(_) | End::Again(_) | End::Error(_) => again.min(Next::after(SAFETY)),
        })
    }
}

impl Planner {
    /// Events of the control plane and of the Cluster that people look at.
    fn tell(&self, control_plane: &RKEControlPlane, notes: &[Note]) {
        self.context.events.publish(control_plane, notes);
        if let Some(cluster) = self.context.store.clusters.get(&ObjectKey::of(control_plane)) {
            self.context.events.publish(cluster.as_ref(), notes);
        }
    }
}

/// The control planes that a Secret is of: its plan secrets, its join tokens, the addresses of its machines and its
/// registration token.
fn clusters_of_secret(
    store: &Store,
) -> impl Fn(&Change<'_, Secret>) -> Vec<ObjectKey> + Send + Sync + 'static {
    let (planes, machines) = (store.control_planes.clone(), store.machines.clone());
    move |change| {
        let Some(secret) = change.either() else { return vec![] };
        match secret.type_.as_deref() {
            Some(secret_types::MACHINE_PLAN) => {
                by_label(Some(secret), labels::CLUSTER_NAME).into_iter().collect()
            }
            Some(secret_types::CLUSTER_STATE) => {
                by_label(Some(secret), labels::capi::CLUSTER_NAME).into_iter().collect()
            }
            Some(secret_types::MACHINE_STATE) => {
                let machines = machines.by_index(BY_STATE_SECRET, &change.key.to_string());
                machines.iter().map(|machine| change.key.sibling(&machine.spec.cluster_name)).collect()
            }
            _ if change.key.name.starts_with("crt-token-") => planes_of_twin(&planes, &change.key.namespace),
            _ => vec![],
        }
    }
}

/// The clusters that may, or might until now, have files from an object.
fn clusters_of_files<K: kube::Resource>(change: &Change<'_, K>) -> Vec<ObjectKey> {
    let objects = change.old.into_iter().chain(change.new);
    let names = objects.flat_map(|object| authorized_for(object.meta()));
    names.map(|name| change.key.sibling(name)).collect()
}
