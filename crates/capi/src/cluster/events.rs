//! Events of a Cluster: the changes between the old and the new status. Pure.

use drover_api::capi::v1beta2::ClusterStatus;
use drover_api::conditions::types;
use drover_runtime::conditions::{TRUE, get};
use drover_runtime::events::Note;
use kube::ResourceExt;

use super::decide::{Action, Decision, Stage};
use super::scope::Scope;

/// The events of a pass; `next` is the new status.
pub fn events(scope: &Scope, decision: &Decision, next: &ClusterStatus) -> Vec<Note> {
    if decision.paused {
        return Vec::new();
    }
    let live = scope.cluster.status.clone().unwrap_or_default();
    let mut notes = Vec::new();
    if decision.control_plane_initialized && !scope.was_initialized() {
        notes.push(Note::normal("ControlPlaneInitialized", "The control plane is initialized"));
    }
    if live.phase != next.phase
        && let Some(reason) = next.phase.as_deref().and_then(phase)
    {
        let message = format!("Cluster {} is {}", scope.cluster.name_any(), reason.to_lowercase());
        notes.push(Note::normal(reason, message));
    }
    if let Some(failure) = &decision.failure {
        notes.push(Note::warning("InfrastructureLost", failure.to_string()).standing());
    }
    if let Some(stage) = &decision.stage {
        deletion(&live, next, stage, &mut notes);
    }
    notes
}

/// Upstream uses the phase as the reason. The status shows the phases of a creation before the last one.
fn phase(phase: &str) -> Option<&'static str> {
    ["Provisioned", "Deleting", "Failed"].into_iter().find(|known| *known == phase)
}

/// The stages of a deletion, when they begin.
fn deletion(live: &ClusterStatus, next: &ClusterStatus, stage: &Stage, notes: &mut Vec<Note>) {
    let before = get(&live.conditions, types::DELETING).filter(|c| c.status == TRUE);
    if before.is_some_and(|condition| condition.reason == stage.reason()) {
        return;
    }
    let message = get(&next.conditions, types::DELETING).map(|c| c.message.clone()).unwrap_or_default();
    match stage {
        Stage::Done => {}
        Stage::Blocked(why) => notes.push(Note::warning("FailedDelete", why.to_string()).standing()),
        _ => notes.push(Note::normal(stage.reason(), message)),
    }
}

/// A write that succeeded.
pub fn done(scope: &Scope, action: &Action) -> Option<Note> {
    let message = || format!("Cluster {} has been deleted", scope.cluster.name_any());
    (*action == Action::RemoveFinalizer).then(|| Note::normal("Deleted", message()))
}
