//! The events of an RKEBootstrap. Pure.

use drover_api::rke::v1::RKEBootstrapStatus;
use drover_runtime::events::Note;
use kube::ResourceExt;

use super::decide::Action;
use super::objects;
use super::scope::Scope;

/// A write that succeeded.
pub fn done(scope: &Scope, action: &Action) -> Option<Note> {
    let name = scope.bootstrap.name_any();
    match action {
        Action::ApplyPlanSecret if !scope.has_plan_secret => {
            let message = format!("Created Secret {} for the plan of the machine", objects::plan_name(&name));
            Some(Note::normal("PlanSecretCreated", message))
        }
        Action::DeleteBootstrapSecret => {
            let secret = objects::bootstrap_name(&name);
            let message = format!("Deleted Secret {secret}: the machine is being deleted");
            Some(Note::normal("BootstrapSecretDeleted", message))
        }
        _ => None,
    }
}

/// What a pass changed in the status.
pub fn events(scope: &Scope, next: &RKEBootstrapStatus) -> Option<Note> {
    let custom = scope.machine.as_ref().is_some_and(|machine| machine.custom);
    let ready = |status: Option<&RKEBootstrapStatus>| {
        status.is_some_and(|status| !status.data_secret_name.is_empty())
    };
    let created = !custom && ready(Some(next)) && !ready(scope.bootstrap.status.as_ref());
    created.then(|| {
        let message =
            format!("Created Secret {} with the bootstrap script of the machine", next.data_secret_name);
        Note::normal("BootstrapSecretCreated", message)
    })
}
