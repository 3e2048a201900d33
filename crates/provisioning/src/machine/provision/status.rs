//! The status of an infra machine after a pass: of what was seen, decided, and could not be written. Pure.

use drover_api::rke::v1::GenericCondition;
use drover_api::wait::{self, Wait};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::decide::Decision;
use super::objects::Names;
use super::scope::Scope;
use super::waits;
use crate::conditions::{self as generic, FALSE, TRUE, UNKNOWN};
use crate::keys::conditions;

/// A wait of a new machine that ends sooner is not written: most last a moment, and each would cost a write here, in its
/// Machine and in all that counts Machines.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// Until when nothing is written, because the machine is new and only waits.
pub fn quiet_until(scope: &Scope, decision: &Decision, now: Timestamp) -> Option<Timestamp> {
    let machine = &scope.machine;
    let fresh = machine.conditions.is_empty() && !machine.deleting && decision.actions.is_empty();
    let only_waits = fresh && decision.waiting.is_some();
    let until = machine.created.and_then(|created| created.checked_add(PATIENCE).ok());
    until.filter(|until| only_waits && now < *until)
}

/// The status to apply. `error` is that of the write that failed, if one did.
pub fn status(scope: &Scope, decision: &Decision, error: Option<&str>, now: Timestamp) -> Value {
    let (machine, progress) = (&scope.machine, &decision.progress);
    let mut status = json!({
        "conditions": conditions(scope, decision, now),
        "jobName": Names::of(&machine.name).provision,
        "attempt": progress.attempt,
        "ready": progress.created == Some(true),
        "initialization": {"provisioned": !machine.provider_id.is_empty()},
        "driverUrl": progress.driver_url,
        "driverHash": progress.driver_hash,
        "cloudCredentialSecretName": machine.credential,
    });
    if let Some((reason, message)) = &progress.failure {
        status["failureReason"] = json!(reason);
        status["failureMessage"] = json!(message);
    }
    if let Some(at) = progress.failed_at {
        status["failedAt"] = json!(at.to_string());
    }
    let waits = wait::merge(&machine.waits, current_wait(scope, decision, error), now);
    if !waits.is_empty() {
        status["waits"] = json!(waits);
    }
    status
}

fn current_wait(scope: &Scope, decision: &Decision, error: Option<&str>) -> Option<Wait> {
    let own = scope.machine.reference();
    match error {
        Some(error) => Some(
            Wait::new("WriteFailed", own, error)
                .expected("the API accepts the write")
                .observed("the write failed and is tried again"),
        ),
        None => decision.waiting.as_ref().map(|waiting| waits::record(waiting, &own)),
    }
}

/// `CreateJob`, `DeleteJob` and `Ready`.
fn conditions(scope: &Scope, decision: &Decision, now: Timestamp) -> Vec<GenericCondition> {
    let (machine, progress) = (&scope.machine, &decision.progress);
    let mut list = machine.conditions.clone();
    let failure = progress.failure.as_ref().map(|(_, text)| text.as_str()).unwrap_or_default();
    let mut set = |type_: &str, ended: Option<bool>| {
        let (status, message) = match ended {
            Some(true) => (TRUE, ""),
            Some(false) => (FALSE, failure),
            None => (UNKNOWN, progress.message.as_str()),
        };
        generic::set(&mut list, type_, status, "", message, now);
    };
    if progress.attempt > 0 {
        set(conditions::CREATE_JOB, progress.created);
    }
    if machine.deleting && (progress.removed.is_some() || progress.running == Some(true)) {
        set(conditions::DELETE_JOB, progress.removed);
    }
    let waiting = decision.waiting.as_ref().map(ToString::to_string);
    let (ready, text) = if progress.created == Some(true) && !machine.deleting {
        (TRUE, "")
    } else if !failure.is_empty() {
        (FALSE, failure)
    } else {
        (FALSE, waiting.as_deref().unwrap_or(&progress.message))
    };
    let reason = match ready {
        TRUE => "",
        _ if progress.failure.is_some() => "Error",
        _ => "Waiting",
    };
    generic::set(&mut list, conditions::READY, ready, reason, text, now);
    list
}
