//! From a provisioning Cluster to its management Cluster and the objects of Cluster API.

pub mod apply;
pub mod decide;
pub mod events;
pub mod kubeconfig;
pub mod log;
pub mod names;
pub mod objects;
pub mod outstanding;
pub mod owned;
pub mod pools;
pub mod removal;
pub mod scope;
pub mod status;
pub mod twin;
pub mod validation;
pub mod waits;

mod observe;
#[cfg(test)]
mod tests;

use std::time::Duration;

use drover_api::management::v3 as management;
use drover_api::provisioning::v1::{Cluster, ClusterStatus};
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;
use serde_json::json;

use self::apply::Written;
use self::decide::{Decision, Outcome, decide};
use self::observe::RecordedSpecs;
use self::scope::Scope;
use self::waits::Refusal;
use crate::context::Context;
use crate::selectors::require_credentials;
use crate::store::{Writer, status_of};

/// A kind that is being listed sends no event when it is complete.
const LISTING: Duration = Duration::from_secs(2);

/// Reconciles one provisioning Cluster.
pub struct Init {
    context: Context,
    writer: Writer,
    twin: Writer,
    scale: Writer,
    status: Writer,
    recorded_specs: RecordedSpecs,
}

impl Init {
    pub fn new(context: &Context) -> Self {
        let writer = |scope: &str| Writer::new(&context.store, "init", scope);
        Self {
            context: context.clone(),
            writer: writer("cluster"),
            twin: writer("twin"),
            scale: writer("scale"),
            status: writer("status").paced(),
            recorded_specs: RecordedSpecs::default(),
        }
    }
}

impl Reconciler for Init {
    const NAME: &'static str = "init";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(cluster) = self.context.store.clusters.get(&key) else {
            self.recorded_specs.forget(&key);
            return Ok(Next::EVENT);
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.remove(&cluster).await;
        }
        require_credentials(&self.context.store, &cluster)?;
        let scope = self.observe(&cluster).await;
        let mut decision = decide(&scope);
        let mut written = Written::default();
        let mut applied = self.apply(&scope, &decision, &mut written).await;
        if let Some(error) = applied.as_ref().err().filter(|error| error.is_invalid()) {
            // The API rejects it until a user changes it.
            decision.outcome = Outcome::Refused(Refusal::Rejected(error.chain()));
            applied = Ok(());
        }
        if decision.outcome == Outcome::Prepared || applied.as_ref().is_err_and(Error::is_conflict) {
            return applied.map(|()| Next::EVENT);
        }
        if matches!(decision.outcome, Outcome::Waiting(_)) && applied.is_ok() && scope.control_plane.is_some()
        {
            // As after a start of the server: what the status says is still so.
            return Ok(Next::after(LISTING));
        }
        let error = applied.as_ref().err().map(Error::chain);
        let next = self.report(&scope, &decision, &written, error.as_deref()).await?;
        applied?;
        Ok(match decision.outcome {
            Outcome::Waiting(_) => next.min(Next::after(LISTING)),
            _ => next,
        })
    }
}

impl Init {
    /// The status, which includes the error of a failed write, and what is copied from it.
    async fn report(
        &self,
        scope: &Scope,
        decision: &Decision,
        written: &Written,
        error: Option<&str>,
    ) -> Result<Next, Error> {
        let (key, now) = (scope.key(), self.context.now());
        let outcome = &decision.outcome;
        let plane = status::plane(scope, decision, written);
        let next = status::status(scope, outcome, plane.as_deref(), error, now);
        if let Outcome::Refused(Refusal::Identity(refusal)) = outcome
            && refusal.clears_status()
            && scope.cluster.management_id().is_some()
        {
            // Left out of an apply, the field would stay as its author wrote it.
            let uid = &scope.cluster.metadata.uid;
            let patch = json!({"metadata": {"uid": uid}, "status": {"clusterName": ""}});
            self.status.merge_status::<Cluster>(&key, patch).await?;
        }
        self.status.apply_status(&status_of::<Cluster>(&key, next.clone())).await?;
        self.context.events.publish(scope.cluster.as_ref(), &events::of_status(&scope.cluster, &next));
        if matches!(outcome, Outcome::Refused(Refusal::Identity(_))) {
            return Ok(Next::EVENT);
        }
        if let Some(twin) = &scope.evidence.twin {
            let status =
                twin::status::status(twin, &scope.cluster, plane.as_deref(), scope.machines.len(), now);
            let id = ObjectKey::cluster(&scope.identity.id);
            self.status.apply_status(&status_of::<management::Cluster>(&id, status)).await?;
        }
        self.write_log(scope, &next).await
    }

    async fn write_log(&self, scope: &Scope, status: &ClusterStatus) -> Result<Next, Error> {
        let line = match log::next(scope.log.as_deref(), status, self.context.now()) {
            log::Step::Nothing => return Ok(Next::EVENT),
            log::Step::Later(delay) => return Ok(Next::after(delay)),
            log::Step::Write(data) => data,
        };
        let desired = ConfigMap {
            metadata: ObjectMeta {
                namespace: Some(scope.identity.id.clone()),
                name: Some(log::NAME.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(line),
            ..ConfigMap::default()
        };
        let Some(stored) = self.writer.apply(&desired).await? else { return Ok(Next::EVENT) };
        // Without waiting, the next pass would append to an old log.
        let revision = stored.metadata.resource_version.unwrap_or_default();
        let key = ObjectKey::new(&scope.identity.id, log::NAME);
        self.context.store.config_maps.shows(&key, &revision, Duration::from_secs(2)).await;
        Ok(Next::EVENT)
    }
}
