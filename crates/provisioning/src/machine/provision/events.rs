//! The events of an infra machine. Pure.

use drover_runtime::events::Note;

use super::decide::{Action, Decision};
use super::scope::Scope;
use crate::conditions as generic;
use crate::keys::conditions;
use crate::machine::args::hostname_limit;

/// What changed, in this pass, between the progress as it was and as it will be.
pub fn events(scope: &Scope, decision: &Decision) -> Vec<Note> {
    let (was, is) = (&scope.machine.progress, &decision.progress);
    let mut notes = Vec::new();
    let failure = || is.failure.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
    match is.created.filter(|_| was.created != is.created) {
        Some(true) => notes.push(Note::normal("CreateJobSucceeded", "The server exists")),
        Some(false) => notes.push(Note::warning("CreateError", failure())),
        None => {}
    }
    match is.removed.filter(|_| was.removed != is.removed) {
        Some(true) => notes.push(Note::normal("DeleteJobSucceeded", "The server is gone")),
        Some(false) => notes.push(Note::warning("DeleteError", failure())),
        None => {}
    }
    let ready = generic::get(&scope.machine.conditions, conditions::READY);
    let said = ready.map(|ready| ready.message.as_str()).unwrap_or_default();
    let waiting = decision.waiting.as_ref().map(ToString::to_string);
    if let Some(why) = waiting.filter(|why| why != said) {
        notes.push(Note::normal("Waiting", capitalized(&why)).if_it_lasts());
    }
    let starts =
        decision.actions.iter().any(|action| matches!(action, Action::StartJob { remove: false, .. }));
    if let (true, Err(why)) = (starts, hostname_limit(&scope.machine.hostname_limit)) {
        notes.push(Note::warning("HostnameLimitIgnored", capitalized(&why)));
    }
    notes
}

/// An action that succeeded.
pub fn done(scope: &Scope, action: &Action, job: &str) -> Option<Note> {
    let note = match action {
        // The status shows the first attempt.
        Action::StartJob { remove: false, attempt: 1 } => return None,
        Action::StartJob { remove: false, attempt } => {
            Note::normal("CreateJobStarted", format!("Job {job} creates the server, attempt {attempt}"))
        }
        Action::StartJob { remove: true, .. } => {
            Note::normal("DeleteJobStarted", format!("Job {job} removes the server"))
        }
        Action::DeleteJob if scope.machine.deleting => {
            Note::normal("JobEnded", format!("Deleted Job {job}, because the machine is being deleted"))
        }
        Action::DeleteCapiMachine(name) => Note::warning(
            "ReplacingMachine",
            format!("Deleted Machine {name}, because its server could not be created"),
        ),
        Action::RemoveFinalizer(Some(left)) => Note::warning("LeftBehind", left.clone()),
        Action::RemoveFinalizer(None) => {
            Note::normal("Deleted", "The server and all that belongs to it are deleted")
        }
        Action::Adopt { .. } | Action::Record | Action::DeleteJob | Action::CleanUp | Action::CleanUpAll => {
            return None;
        }
    };
    Some(note)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
