//! The events of an RKEBootstrap: its Machine and its infrastructure report what succeeds. Pure.

use drover_runtime::events::Note;
use kube::ResourceExt;

use super::decide::Action;
use super::objects;
use super::scope::Scope;

/// A write that succeeded.
pub fn done(scope: &Scope, action: &Action) -> Option<Note> {
    match action {
        Action::DeleteBootstrapSecret => {
            let secret = objects::bootstrap_name(&scope.bootstrap.name_any());
            let message = format!("Deleted Secret {secret}: the machine is being deleted");
            Some(Note::normal("BootstrapSecretDeleted", message))
        }
        _ => None,
    }
}
