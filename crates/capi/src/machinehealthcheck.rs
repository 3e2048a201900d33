//! MachineHealthCheck: stored, but without an effect yet, which its status reports.

use std::sync::Arc;

use drover_api::capi::v1beta2::{MachineHealthCheck, MachineHealthCheckStatus};
use drover_api::conditions::types;
use drover_runtime::apply::Applier;
use drover_runtime::conditions::{FALSE, get, merge, new};
use drover_runtime::events::{Note, Recorder};
use drover_runtime::{Cache, Clock, Controller, Error, Next, ObjectKey, Reconciler};
use jiff::Timestamp;
use kube::{Client, ResourceExt};

use crate::manager::shell;
use crate::meta;

const REASON: &str = "NotImplemented";
/// The status text of a MachineHealthCheck.
pub const NO_EFFECT: &str = "stored, but without effect yet: the Machines that it selects are not checked, and unhealthy ones are not \
     replaced; to replace a Machine, delete it";

/// Reports that MachineHealthChecks have no effect.
pub struct MachineHealthCheckController {
    checks: Cache<MachineHealthCheck>,
    status: Applier,
    events: Recorder,
    clock: Arc<dyn Clock>,
}

impl MachineHealthCheckController {
    /// The controller with its watches.
    pub fn controller(
        client: Client,
        checks: Cache<MachineHealthCheck>,
        clock: Arc<dyn Clock>,
    ) -> Controller<Self> {
        let controller = Controller::new(Self {
            checks: checks.clone(),
            status: Applier::new(client.clone(), Self::NAME, "status"),
            events: Recorder::new(client, clock.clone(), "drover-machinehealthcheck"),
            clock,
        });
        controller.reconciles(&checks)
    }
}

impl Reconciler for MachineHealthCheckController {
    const NAME: &'static str = "machinehealthcheck";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(check) = self.checks.get(&key) else { return Ok(Next::EVENT) };
        if meta::is_deleting(&check.metadata) {
            return Ok(Next::EVENT);
        }
        let mut desired = MachineHealthCheck::new(&key.name, check.spec.clone());
        desired.metadata.namespace = check.namespace();
        desired.status = Some(status(&check, self.clock.now()));
        shell::ignore_gone(self.status.apply_status(&desired, Some(&check)).await)?;
        self.events.publish(&*check, &note(&check));
        Ok(Next::EVENT)
    }
}

/// The status to apply.
fn status(check: &MachineHealthCheck, now: Timestamp) -> MachineHealthCheckStatus {
    let live = check.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let condition = new(types::REMEDIATION_ALLOWED, FALSE, REASON, NO_EFFECT);
    MachineHealthCheckStatus {
        conditions: merge(live, vec![condition], now),
        observed_generation: check.metadata.generation,
        ..MachineHealthCheckStatus::default()
    }
}

/// The event, unless the status already has the condition.
fn note(check: &MachineHealthCheck) -> Option<Note> {
    let live = check.status.as_ref().and_then(|status| get(&status.conditions, types::REMEDIATION_ALLOWED));
    let reported = live.is_some_and(|condition| condition.reason == REASON);
    (!reported).then(|| Note::warning("NotInEffect", NO_EFFECT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_effect_is_reported_once() {
        let mut check = MachineHealthCheck::default();
        check.metadata.generation = Some(3);
        let event = note(&check).unwrap();
        assert_eq!((event.type_, event.reason), ("Warning", "NotInEffect"));
        assert!(event.message.contains("without effect yet"), "{}", event.message);
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let next = status(&check, now);
        let condition = get(&next.conditions, types::REMEDIATION_ALLOWED).unwrap();
        assert_eq!((condition.status.as_str(), condition.message.as_str()), (FALSE, NO_EFFECT));
        assert_eq!(next.observed_generation, Some(3));
        check.status = Some(next.clone());
        assert_eq!(note(&check), None);
        assert_eq!(status(&check, now + jiff::SignedDuration::from_hours(1)), next, "steady");
    }
}
