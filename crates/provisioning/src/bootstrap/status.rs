//! The status of an RKEBootstrap after a pass: of what was seen, decided, and could not be written. Pure.

use drover_api::rke::v1::{RKEBootstrapInitializationStatus, RKEBootstrapStatus};
use drover_api::wait::{self, Wait, WaitObject};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::decide::{Decision, Waiting};
use super::objects;
use super::scope::Scope;

/// A wait that ends sooner is not recorded: most last a moment, and each would cost a write.
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(10);

/// The new status. `error` is that of the write that failed, if one did.
pub fn status(scope: &Scope, decision: &Decision, error: Option<&str>, now: Timestamp) -> RKEBootstrapStatus {
    let mut status = scope.bootstrap.status.clone().unwrap_or_default();
    if decision.ready && error.is_none() {
        status.data_secret_name = objects::bootstrap_name(&scope.bootstrap.name_any());
        status.ready = true;
        status.initialization = Some(RKEBootstrapInitializationStatus { data_secret_created: Some(true) });
    }
    let namespace = scope.bootstrap.namespace().unwrap_or_default();
    let own = || WaitObject::new("RKEBootstrap", &namespace, scope.bootstrap.name_any());
    let wait = match (error, &decision.wait) {
        (Some(error), _) => Some(
            Wait::new("WriteFailed", own(), error)
                .expected("the API accepts the write")
                .observed("the write failed and is tried again"),
        ),
        (None, Some(waiting)) if is_old(scope, now) => Some(record(waiting, &namespace, own())),
        (None, _) => None,
    };
    status.waits = wait::merge(&status.waits, wait, now);
    status
}

fn is_old(scope: &Scope, now: Timestamp) -> bool {
    let created = scope.bootstrap.metadata.creation_timestamp.as_ref();
    created.is_none_or(|created| now.duration_since(created.0) >= PATIENCE)
}

fn record(waiting: &Waiting, namespace: &str, own: WaitObject) -> Wait {
    match waiting {
        Waiting::Machine => {
            Wait::new("WaitingForMachine", own, waiting).expected("Cluster API sets its Machine as the owner")
        }
        Waiting::Infrastructure { cluster } => {
            let object = WaitObject::new("Cluster", namespace, cluster);
            Wait::new("WaitingForInfrastructure", object, waiting)
                .expected("the cluster infrastructure is provisioned")
        }
        Waiting::Token { account } => {
            let object = WaitObject::new("ServiceAccount", namespace, account);
            Wait::new("WaitingForToken", object, waiting).expected("the API server fills in the token")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_is_shown_and_the_secret_is_not_called_complete() {
        let now = Timestamp::UNIX_EPOCH;
        let decision = Decision { ready: true, ..Decision::default() };
        let failed = status(&Scope::default(), &decision, Some("lost"), now);
        assert!(!failed.ready && failed.waits[0].message == "lost", "{failed:?}");
        let done = status(&Scope::default(), &decision, None, now);
        assert!(done.ready && done.waits.is_empty(), "{done:?}");
        let waiting = Decision { wait: Some(Waiting::Machine), ..Decision::default() };
        assert_eq!(status(&Scope::default(), &waiting, None, now).waits[0].reason, "WaitingForMachine");
    }
}
