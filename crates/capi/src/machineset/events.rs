//! Events of a MachineSet about its Machines, with upstream's reasons. Pure.

use drover_runtime::events::Note;

use super::decide::{Action, Decision};

/// A write that succeeded.
pub fn done(action: &Action) -> Option<Note> {
    match action {
        Action::Create(name) => Some(Note::normal("SuccessfulCreate", format!("Created Machine {name:?}"))),
        Action::Delete { name, reason, .. } => {
            Some(Note::normal("SuccessfulDelete", format!("Deleted Machine {name:?}, because {reason}")))
        }
        Action::Adopt(name) => Some(Note::normal("SuccessfulAdopt", format!("Adopted Machine {name:?}"))),
        _ => None,
    }
}

/// An error without the random names of an attempt: equal failures must have equal texts, because each new text would
/// change the status and cause another attempt.
pub fn alike(decision: &Decision, error: &str) -> String {
    decision.actions.iter().fold(error.to_owned(), |text, action| match action {
        Action::Create(name) => text.replace(name.as_str(), "NAME"),
        _ => text,
    })
}

/// A write that failed. It is tried again, so it is a lasting state.
pub fn failed(action: &Action, error: &str) -> Option<Note> {
    let (reason, doing) = match action {
        // Each attempt uses another name.
        Action::Create(name) => {
            let alike = error.replace(name.as_str(), "NAME");
            return Some(
                Note::warning("FailedCreate", format!("Failed to create a Machine: {alike}")).standing(),
            );
        }
        Action::Delete { name, .. } => ("FailedDelete", format!("delete Machine {name:?}")),
        Action::Adopt(name) => ("FailedAdopt", format!("adopt Machine {name:?}")),
        _ => return None,
    };
    Some(Note::warning(reason, format!("Failed to {doing}: {error}")).standing())
}

/// Other events of a pass.
pub fn events(decision: &Decision) -> Vec<Note> {
    let blocked = decision.blocked.as_ref().map(|why| {
        Note::normal("ScalingUpBlocked", format!("Machines are missing, but none is created: {why}"))
            .standing()
    });
    blocked.into_iter().collect()
}
