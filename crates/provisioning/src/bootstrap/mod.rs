//! Bootstrap provider: RKEBootstrap gives each machine its plan secret and the script that fetches it.
//!
//! `observe` reads caches, [`decide`] says which objects are missing, `apply` writes them in order, [`status`] reports. The
//! objects themselves are in [`objects`] and [`script`]. [`hook`] is a reconciler of its own: it keeps etcd machines until
//! their member has left the cluster.

pub mod abridged;
mod apply;
pub mod decide;
pub mod events;
pub mod hook;
pub mod objects;
mod observe;
pub mod scope;
pub mod script;
pub mod status;
pub mod token;

use std::sync::Arc;

use drover_api::capi::v1beta2 as capi;
use drover_api::rke::v1 as rke;
use drover_api::secret_types;
use drover_runtime::{Controller, Error, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use crate::context::Context;
use crate::controllers::with_settings;
use crate::keys::labels;
use crate::owner::owner_name;
use crate::store::{Writer, status_of};

/// Reconciles RKEBootstraps.
pub struct Bootstraps {
    context: Context,
    writer: Writer,
}

impl Bootstraps {
    /// The controller with everything that wakes it.
    pub fn controller(context: &Context) -> Controller<Self> {
        let store = &context.store;
        let writer = Writer::new(store, "bootstrap", "provider");
        let controller = Controller::new(Self { context: context.clone(), writer });
        let (machines, bootstraps) = (store.machines.clone(), store.bootstraps.clone());
        with_settings(controller, store, &store.bootstraps)
            .reconciles(&store.bootstraps)
            .watches(&store.machines, |change| {
                let machine = change.either()?;
                let config =
                    machine.spec.bootstrap.config_ref.as_ref().filter(|c| c.kind == "RKEBootstrap")?;
                // Only whether the machine is needed matters here, not what else its status says.
                let ends =
                    |machine: Option<&Arc<capi::Machine>>| machine.map(|machine| observe::is_ending(machine));
                let same = change.old.is_some() && ends(change.old) == ends(change.new);
                (!same).then(|| change.key.sibling(&config.name))
            })
            .watches(&store.capi_clusters, move |change| {
                // A Cluster's status counts its machines and changes with each of them.
                let facts =
                    |cluster: Option<&Arc<capi::Cluster>>| cluster.map(|cluster| cluster_facts(cluster));
                if facts(change.old) == facts(change.new) {
                    return vec![];
                }
                let all =
                    machines.by_label(labels::capi::CLUSTER_NAME, &change.key.namespace, &change.key.name);
                let configs = all.iter().filter_map(|machine| machine.spec.bootstrap.config_ref.as_ref());
                configs.map(|config| change.key.sibling(&config.name)).collect::<Vec<_>>()
            })
            .watches(&store.accounts, |change| {
                let account = change.either()?;
                owner_name(&account.metadata, "rke.cattle.io", "RKEBootstrap")
                    .map(|name| change.key.sibling(name))
            })
            .watches(&store.secrets, move |change| {
                let secret = change.either()?;
                if let Some(name) = owner_name(&secret.metadata, "rke.cattle.io", "RKEBootstrap") {
                    let bootstrap = change.key.sibling(name);
                    let own = bootstraps.get(&bootstrap)?;
                    // What agent and planner write into a plan secret is not this controller's.
                    let intact = change.new.is_some_and(|secret| carries(secret, &own));
                    return (!intact).then_some(bootstrap);
                }
                // The token of a bootstrap account was filled in.
                let account = secret.labels().get(labels::SERVICE_ACCOUNT_NAME)?;
                let bootstrap = change.key.sibling(account.strip_suffix("-machine-bootstrap")?);
                bootstraps.get(&bootstrap).map(|_| bootstrap)
            })
    }
}

impl Reconciler for Bootstraps {
    const NAME: &'static str = "bootstrap";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(bootstrap) = self.context.store.bootstraps.get(&key) else { return Ok(Next::EVENT) };
        let scope = self.observe(&bootstrap);
        let decision = decide::decide(&scope);
        let applied = self.apply(&scope, &decision).await;
        if applied.as_ref().is_err_and(Error::is_conflict) {
            return applied.map(|()| Next::EVENT);
        }
        let error = applied.as_ref().err().map(Error::chain);
        let next = status::status(&scope, &decision, error.as_deref(), self.context.now());
        if next != bootstrap.status.clone().unwrap_or_default() {
            let desired = status_of::<rke::RKEBootstrap>(&key, next.clone());
            self.writer.apply_status(&desired).await?;
        }
        applied?;
        // What is waited for is an event; a wait that lasts is recorded in the status.
        let recorded = decision.wait.is_none() || !next.waits.is_empty();
        Ok(if recorded { Next::EVENT } else { Next::after(status::PATIENCE.unsigned_abs()) })
    }
}

/// Whether a plan secret has the labels and annotations of its bootstrap.
fn carries(secret: &Secret, bootstrap: &rke::RKEBootstrap) -> bool {
    secret.type_.as_deref() == Some(secret_types::MACHINE_PLAN)
        && bootstrap.labels().iter().all(|(key, value)| secret.labels().get(key) == Some(value))
        && objects::plan_annotations(bootstrap)
            .all(|(key, value)| secret.annotations().get(key) == Some(value))
}

/// What the bootstrap of a machine depends on.
fn cluster_facts(cluster: &capi::Cluster) -> (bool, bool, bool) {
    let initialization = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    (
        cluster.metadata.deletion_timestamp.is_some(),
        cluster.spec.paused.unwrap_or(false),
        initialization.and_then(|done| done.infrastructure_provisioned).unwrap_or(false),
    )
}
