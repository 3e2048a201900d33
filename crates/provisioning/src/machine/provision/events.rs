//! What an infra machine tells of its Jobs. Pure.

use drover_runtime::events::Note;

use super::decide::{Decision, Scope, Step};
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
    if let Some(why) = is.waiting.as_ref().filter(|why| *why != said) {
        notes.push(Note::normal("Waiting", capitalized(why)).if_it_lasts());
    }
    let starts = decision.steps.iter().any(|step| matches!(step, Step::StartJob { remove: false, .. }));
    if let (true, Err(why)) = (starts, hostname_limit(&scope.machine.hostname_limit)) {
        notes.push(Note::warning("HostnameLimitIgnored", capitalized(&why)));
    }
    notes
}

/// A step that succeeded.
pub fn done(scope: &Scope, step: &Step, job: &str) -> Option<Note> {
    let note = match step {
        Step::StartJob { remove: false, attempt } => {
            Note::normal("CreateJobStarted", format!("Job {job} makes the server, attempt {attempt}"))
        }
        Step::StartJob { remove: true, .. } => {
            Note::normal("DeleteJobStarted", format!("Job {job} removes the server"))
        }
        Step::DeleteJob if scope.machine.deleting => {
            Note::normal("JobEnded", format!("Ended Job {job}, because the machine goes"))
        }
        Step::DeleteCapiMachine(name) => Note::warning(
            "ReplacingMachine",
            format!("Deleted Machine {name}, whose server could not be made"),
        ),
        Step::DropFinalizer(Some(left)) => Note::warning("LeftBehind", left.clone()),
        Step::DropFinalizer(None) => Note::normal("Deleted", "Nothing is left of the machine"),
        Step::AddFinalizer | Step::DeleteJob | Step::CleanUp | Step::CleanUpAll => return None,
    };
    Some(note)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
