//! machineprovision: one server per infra machine, created and removed by a Job.
//!
//! `observe` reads caches into a [`scope::Scope`], [`decide`] says what to do, `apply` writes in order and stops at the first
//! failure, [`status`] reports last, with the error of a write that failed. The exception: an attempt is recorded in the
//! status before its Job is created.

mod apply;
pub mod decide;
pub mod events;
pub mod namesake;
pub mod objects;
pub mod observe;
pub mod scope;
pub mod state;
pub mod status;
pub mod waits;

#[cfg(test)]
mod fixedpoint;
#[cfg(test)]
mod tests;

use drover_runtime::{Cache, Error, Expectations, Next, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{ApiResource, DynamicObject};

use self::decide::{Action, decide};
use crate::context::Context;
use crate::store::{DynamicWriter, Writer};

/// Reconciles infra machines of one kind.
pub struct MachineProvision {
    context: Context,
    resource: ApiResource,
    cache: Cache<DynamicObject>,
    writer: Writer,
    /// Attempts that we recorded and that the cache may not show yet.
    noted: Expectations,
}

impl MachineProvision {
    pub fn new(context: &Context, resource: &ApiResource, cache: &Cache<DynamicObject>) -> Self {
        cache.index(namesake::INDEX, namesake::claims);
        Self {
            context: context.clone(),
            resource: resource.clone(),
            cache: cache.clone(),
            writer: Writer::new(&context.store, "machineprovision", "machine"),
            noted: Expectations::default(),
        }
    }

    fn reference(&self, object: &DynamicObject) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.resource.api_version.clone()),
            kind: Some(self.resource.kind.clone()),
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
            uid: object.metadata.uid.clone(),
            ..ObjectReference::default()
        }
    }

    fn machines(&self) -> DynamicWriter<'_> {
        self.writer.dynamic(&self.resource)
    }
}

impl Reconciler for MachineProvision {
    const NAME: &'static str = "machineprovision";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(known) = self.cache.get(&key) else {
            self.noted.forget(&key);
            return Ok(Next::EVENT);
        };
        // An object that was deleted just when its attempt was recorded looks as if nothing had been created for it.
        self.noted.met(known.as_ref(), &self.cache).await?;
        let Some(object) = self.cache.get(&key) else { return Ok(Next::EVENT) };
        let infra = self.infra(object);
        let scope = self.observe(&infra);
        let now = self.context.now();
        let decision = decide(&scope, now);
        let quiet = status::quiet_until(&scope, &decision, now);
        if quiet.is_some() {
            return Ok(self.context.next(quiet));
        }
        let mut recorded = None;
        let applied = self.apply(&infra, &scope, &decision, &mut recorded, now).await;
        if applied.as_ref().is_err_and(Error::is_conflict) {
            return applied.map(|()| Next::EVENT);
        }
        let ended = |action: &Action| matches!(action, Action::RemoveFinalizer(_));
        let removed = applied.is_ok() && decision.actions.iter().any(ended);
        let adopted = applied.is_ok() && matches!(decision.actions.as_slice(), [Action::Adopt { .. }]);
        let is_ours = scope.machine.has_finalizer || !scope.machine.deleting;
        if is_ours && !removed && !adopted {
            let error = applied.as_ref().err().map(Error::chain);
            let status = status::status(&scope, &decision, error.as_deref(), now);
            self.write_status(&infra, recorded.as_ref().unwrap_or(&infra.object), status).await?;
        }
        for note in events::events(&scope, &decision) {
            self.context.events.record(self.reference(&infra.object), note);
        }
        applied?;
        Ok(self.context.next(decision.look_again))
    }
}
