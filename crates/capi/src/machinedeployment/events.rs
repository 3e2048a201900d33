//! Events of a MachineDeployment about its sets, with upstream's reasons. Pure.

use drover_runtime::events::Note;
use kube::ResourceExt;

use super::decide::{Action, Decision};
use super::scope::Scope;

/// A write that succeeded.
pub fn done(scope: &Scope, action: &Action) -> Option<Note> {
    match action {
        Action::Set(plan) if plan.create => {
            let message = format!("Created MachineSet {} as revision {}", plan.name, plan.revision);
            Some(Note::normal("SuccessfulCreate", message))
        }
        Action::Set(plan) => {
            let live = scope.sets.iter().find(|set| set.name_any() == plan.name)?;
            let before = live.spec.replicas.unwrap_or(0);
            let way = match plan.replicas.cmp(&before) {
                std::cmp::Ordering::Less => "down",
                std::cmp::Ordering::Greater => "up",
                std::cmp::Ordering::Equal => return None,
            };
            let message = format!("Scaled {way} MachineSet {}: {before} -> {}", plan.name, plan.replicas);
            Some(Note::normal("SuccessfulScale", message))
        }
        Action::Adopt(name) => Some(Note::normal("SuccessfulAdopt", format!("Adopted MachineSet {name:?}"))),
        Action::Delete { name, .. } => {
            Some(Note::normal("SuccessfulDelete", format!("Deleted MachineSet {name:?}")))
        }
        _ => None,
    }
}

/// An error without the random names of an attempt: equal failures must have equal texts, because each new text would
/// change the status and cause another attempt.
pub fn alike(decision: &Decision, error: &str) -> String {
    decision.actions.iter().fold(error.to_owned(), |text, action| match action {
        Action::Set(plan) if plan.create => text.replace(&plan.name, "NAME"),
        _ => text,
    })
}

/// A write that failed. It is tried again, so it is a lasting state.
pub fn failed(action: &Action, error: &str) -> Option<Note> {
    let (reason, doing) = match action {
        // Each attempt uses another name.
        Action::Set(plan) if plan.create => {
            let alike = error.replace(&plan.name, "NAME");
            return Some(
                Note::warning("FailedCreate", format!("Failed to create a MachineSet: {alike}")).standing(),
            );
        }
        Action::Set(plan) => ("FailedUpdate", format!("update MachineSet {:?}", plan.name)),
        Action::Adopt(name) => ("FailedAdopt", format!("adopt MachineSet {name:?}")),
        Action::Delete { name, .. } => ("FailedDelete", format!("delete MachineSet {name:?}")),
        _ => return None,
    };
    Some(Note::warning(reason, format!("Failed to {doing}: {error}")).standing())
}

/// Other events of a pass.
pub fn events(decision: &Decision) -> Vec<Note> {
    let blocked = decision
        .blocked
        .as_ref()
        .map(|why| Note::warning("FailedCreate", format!("Cannot create a MachineSet: {why}")).standing());
    blocked.into_iter().collect()
}
