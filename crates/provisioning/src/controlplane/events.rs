//! The events of an RKEControlPlane and its Machines: which machine starts the cluster, which gets which plan, what is waited
//! for. Pure.

use drover_api::rke::v1::RKEControlPlaneStatus;
use drover_runtime::events::Note;

use super::decide::{Action, PlanWrite};
use super::scope::Scope;
use super::status::is_true;
use crate::conditions as generic;
use crate::keys::conditions;
use crate::plansecret::Reason;

/// What a pass changed in the status.
pub fn events(scope: &Scope, next: &RKEControlPlaneStatus) -> Vec<Note> {
    let ready = |status: &RKEControlPlaneStatus| generic::get(&status.conditions, conditions::READY).cloned();
    let mut notes = Vec::new();
    if let Some(now) = ready(next) {
        let before = ready(&scope.status);
        let news = before.is_none_or(|before| before.message != now.message);
        match now.status.as_str() {
            // It also ends a wait that is not recorded yet.
            generic::TRUE if !is_true(&scope.status, conditions::READY) => {
                notes.push(Note::normal("Ready", "All machines are configured as specified"));
            }
            generic::UNKNOWN if news => notes.push(Note::normal("Waiting", now.message).if_it_lasts()),
            generic::FALSE if news => notes.push(Note::warning("Error", now.message)),
            _ => {}
        }
    }
    notes
}

/// A write that succeeded.
pub fn done(scope: &Scope, action: &Action) -> Vec<Note> {
    let note = match action {
        Action::WriteSecret(write) => {
            return write
                .reasons
                .iter()
                .filter_map(|reason| edited(scope, &write.machine, *reason))
                .collect();
        }
        Action::ForceEtcdRemoval { machine, .. } => Note::warning(
            "ForcedEtcdRemoval",
            format!("Machine {machine} is deleted without leaving etcd first: no etcd machine would be left"),
        ),
        Action::Unpause => {
            Note::normal("Unpaused", "Unpaused the Cluster: a paused cluster cannot be deleted")
        }
        // The events of the Cluster and its Machines say what came of these.
        Action::AddFinalizer
        | Action::CreateStateSecret
        | Action::SetConditions { .. }
        | Action::SetVersion { .. } => return vec![],
    };
    vec![note]
}

/// The event of a Machine after its plan secret was written. The first plan has no event: it is a step of the creation,
/// which the status shows.
pub fn written(write: &PlanWrite, is_first: bool) -> Option<Note> {
    let applied = write.reasons.contains(&Reason::PlanApplied) && !is_first;
    applied.then(|| Note::normal("PlanApplied", "The machine has applied its plan"))
}

fn edited(scope: &Scope, machine: &str, reason: Reason) -> Option<Note> {
    let version = &scope.spec.kubernetes_version;
    Some(match reason {
        Reason::InitNodeElected => Note::normal(
            "InitNodeElected",
            format!("Machine {machine} starts the cluster; the others join it"),
        ),
        Reason::InitNodeDismissed => Note::normal(
            "InitNodeDismissed",
            format!("Machine {machine} is no longer the one that others join"),
        ),
        Reason::DrainStarted => {
            Note::normal("DrainingNode", format!("Draining Machine {machine} before its new plan"))
        }
        Reason::DrainEnded => {
            Note::normal("UncordoningNode", format!("Machine {machine} has its plan and takes pods again"))
        }
        Reason::MinorChange => Note::normal(
            "PlanWritten",
            format!("Wrote files of Machine {machine} that nothing is restarted for"),
        ),
        Reason::PlanRepaired => Note::warning(
            "PlanRepaired",
            format!(
                "Wrote the plan of Machine {machine} again: the key plan of its plan secret was overwritten or removed"
            ),
        ),
        Reason::InitialPlan | Reason::PlanChanged => Note::normal(
            "PlanWritten",
            format!("Wrote the plan of Machine {machine} for {version}: {reason}"),
        ),
        Reason::KeysRepaired
        | Reason::PlanApplied
        | Reason::ProbesPassed
        | Reason::OutputPruned
        | Reason::Retry
        | Reason::AgentOffer
        | Reason::JoinUrl
        | Reason::JoinedTo => return None,
    })
}
