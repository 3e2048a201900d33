//! The status of an RKEControlPlane after a pass: of what was seen, decided, and could not be written. Pure.

use crate::keys::conditions;
use drover_api::rke::v1::{RKEControlPlaneInitializationStatus, RKEControlPlaneStatus};
use drover_api::wait;
use jiff::Timestamp;

use super::change::Change;
use super::decide::{Decision, End};
use super::scope::Scope;
use super::waitrecords;
use crate::conditions::{self as generic, FALSE, TRUE, UNKNOWN};

/// `controlPlaneInitialized`.
pub fn is_initialized(status: &RKEControlPlaneStatus) -> bool {
    status.initialization.as_ref().and_then(|init| init.control_plane_initialized).unwrap_or(false)
}

/// Whether a condition is True.
pub fn is_true(status: &RKEControlPlaneStatus, condition: &str) -> bool {
    generic::is_true(&status.conditions, condition)
}

/// The new status. `error` is that of the write that failed, if one did: it is shown, and the specification does not count
/// as applied.
pub fn status(
    scope: &Scope,
    decision: &Decision,
    error: Option<&str>,
    now: Timestamp,
) -> RKEControlPlaneStatus {
    let mut status = scope.status.clone();
    let mut set = |type_: &str, value: &str, reason: &str, message: &str| {
        generic::set(&mut status.conditions, type_, value, reason, message, now);
    };
    for type_ in [conditions::SCALING_UP, conditions::SCALING_DOWN, conditions::ROLLING_OUT] {
        set(type_, FALSE, "NotImplemented", "");
    }
    let marks = &decision.marks;
    if marks.provisioned {
        set(conditions::PROVISIONED, TRUE, "", "");
    }
    if marks.bootstrapped {
        set(conditions::BOOTSTRAPPED, TRUE, "", "");
    }
    if let Some(stable) = marks.stable {
        set(conditions::STABLE, if stable { TRUE } else { FALSE }, "", "");
    }
    let message = decision.message();
    match (error, &decision.end) {
        (Some(error), _) => {
            set(conditions::READY, FALSE, "Error", error);
            set(conditions::RECONCILED, FALSE, "Error", error);
        }
        (None, End::Error(_)) => {
            set(conditions::READY, FALSE, "Error", &message);
            set(conditions::RECONCILED, FALSE, "Error", &message);
        }
        (None, End::Ready) => {
            // Machines that cannot be judged are named, though nothing is waited for.
            let reason = if decision.unknown.is_empty() { "" } else { "UnknownMachines" };
            set(conditions::READY, TRUE, reason, &message);
            set(conditions::RECONCILED, TRUE, "", "");
        }
        (None, End::Waiting(_)) => {
            set(conditions::READY, UNKNOWN, "Waiting", &message);
            let applied = scope.status.applied_spec.as_deref() == Some(&scope.spec);
            if !applied {
                let text = "RKEControlPlane has not been fully reconciled yet";
                set(conditions::RECONCILED, UNKNOWN, "Waiting", text);
            }
        }
        (None, End::Again(_) | End::Silent) => {}
    }
    match (&decision.end, Change::of(scope)) {
        (End::Waiting(_), Some(change)) => {
            generic::set(
                &mut status.conditions,
                conditions::UPDATING,
                TRUE,
                change.reason(),
                &change.message,
                now,
            );
        }
        (End::Ready, _) if error.is_none() => {
            status.conditions.retain(|condition| condition.type_ != conditions::UPDATING)
        }
        _ => {}
    }
    if decision.refused.is_empty() {
        status.conditions.retain(|condition| condition.type_ != conditions::CONFIG_ACCEPTED);
    } else {
        let keys: Vec<&str> = decision.refused.iter().map(String::as_str).collect();
        let message = format!(
            "not passed on to machines, because {} does not know them: {}",
            scope.spec.kubernetes_version,
            keys.join(", ")
        );
        generic::set(
            &mut status.conditions,
            conditions::CONFIG_ACCEPTED,
            FALSE,
            "UnknownKeys",
            &message,
            now,
        );
    }
    if let Some(initialized) = marks.control_plane_initialized {
        status.initialization =
            Some(RKEControlPlaneInitializationStatus { control_plane_initialized: Some(initialized) });
    }
    if error.is_some() || !matches!(decision.end, End::Again(_) | End::Silent) {
        let waits = waitrecords::records(scope, decision, error);
        status.waits = wait::merge(&scope.status.waits, waits, now);
    }
    // Clients of older releases read these two.
    status.ready = is_initialized(&status);
    status.initialized = status.ready;
    status.agent_connected = scope.connected;
    let done = error.is_none();
    if done && decision.end == End::Ready {
        status.applied_spec = Some(Box::new(scope.spec.clone()));
    }
    // A pass that only prepared the next one has said nothing of the spec yet.
    if done && matches!(decision.end, End::Ready | End::Waiting(_)) {
        status.observed_generation = scope.generation;
    }
    status
}
