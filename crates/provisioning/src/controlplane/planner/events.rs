//! What an RKEControlPlane tells: who starts the cluster, who gets which plan, what is waited for. Pure.

use drover_runtime::events::Note;

use super::change;
use super::pass::{Action, Decision, End, Scope};
use super::status::{is_initialized, is_true};
use crate::conditions as generic;
use crate::keys::conditions;

/// What a pass has to tell, before its actions.
pub fn events(scope: &Scope, decision: &Decision) -> Vec<Note> {
    let mut notes = change::notes(scope, decision);
    let ready = generic::get(&scope.status.conditions, conditions::READY);
    let said = ready.map(|ready| ready.message.as_str()).unwrap_or_default();
    match &decision.end {
        End::Waiting(message) if message != said => {
            notes.push(Note::normal("Waiting", message).if_it_lasts());
        }
        End::Error(message) if message != said => notes.push(Note::warning("Error", message)),
        End::Ready if !is_true(&scope.status, conditions::READY) => {
            notes.push(Note::normal("Ready", "Every machine is configured as the specification says"));
        }
        _ => {}
    }
    if decision.marks.control_plane_initialized == Some(true) && !is_initialized(&scope.status) {
        notes.push(Note::normal("ControlPlaneInitialized", "A control plane machine can be joined"));
    }
    notes
}

/// A write that succeeded.
pub fn done(scope: &Scope, action: &Action) -> Option<Note> {
    let note = match action {
        Action::WriteSecret(write) => return written(scope, &write.machine, &write.reason),
        Action::CreateStateSecret => {
            Note::normal("JoinTokensCreated", "Made the tokens that machines join the cluster with")
        }
        Action::ForceEtcdRemoval { machine, .. } => Note::warning(
            "ForcedEtcdRemoval",
            format!("Machine {machine} goes without leaving etcd first: no etcd machine would be left"),
        ),
        Action::Unpause => Note::normal("Unpaused", "A paused cluster could not be deleted"),
        Action::MachineReconciled { .. } | Action::MachineVersion { .. } => return None,
    };
    Some(note)
}

fn written(scope: &Scope, machine: &str, reason: &str) -> Option<Note> {
    let version = &scope.spec.kubernetes_version;
    Some(match reason {
        "elected init node" => Note::normal(
            "InitNodeElected",
            format!("Machine {machine} starts the cluster; the others join it"),
        ),
        "no longer init node" => Note::normal(
            "InitNodeDismissed",
            format!("Machine {machine} is no longer the one that others join"),
        ),
        "start drain" => {
            Note::normal("DrainingNode", format!("Draining Machine {machine} before its new plan"))
        }
        "end drain" => {
            Note::normal("UncordoningNode", format!("Machine {machine} has its plan and takes pods again"))
        }
        "minor change" => Note::normal(
            "PlanWritten",
            format!("Wrote files of Machine {machine} that nothing is restarted for"),
        ),
        "plan repaired" => Note::warning(
            "PlanRepaired",
            format!(
                "Wrote the plan of Machine {machine} again: the key plan of its plan secret was overwritten or removed"
            ),
        ),
        "initial plan" | "plan changed" => Note::normal(
            "PlanWritten",
            format!("Wrote the plan of Machine {machine} for {version}: {reason}"),
        ),
        _ => return None,
    })
}
