//! Events of a Machine: the changes between the old and the new status. Pure.

use drover_api::capi::v1beta2::MachineStatus;
use drover_api::conditions::{reasons, types};
use drover_runtime::conditions::{TRUE, get, is_true};
use drover_runtime::events::Note;
use jiff::{SignedDuration, Timestamp};

use super::decide::{Action, Decision};
use super::deletion::Stage;
use super::scope::Scope;
use crate::conditions::INVALID_CONFIGURATION;

/// The events of a pass; `next` is the new status.
pub fn events(scope: &Scope, decision: &Decision, next: &MachineStatus, now: Timestamp) -> Vec<Note> {
    if decision.paused {
        return Vec::new();
    }
    let live = scope.machine.status.clone().unwrap_or_default();
    let mut notes = Vec::new();
    if let (None, Some(node)) = (scope.node_name(), &decision.node_name) {
        notes.push(Note::normal("SuccessfulSetNodeRef", node.clone()));
    }
    if let Some(failure) = &decision.failure {
        notes.push(Note::warning(INVALID_CONFIGURATION, failure.to_string()).standing());
    }
    readiness(scope, &live, next, &mut notes);
    if let Some(stage) = &decision.stage {
        deletion(scope, &live, next, stage, now, &mut notes);
    }
    notes
}

fn readiness(scope: &Scope, live: &MachineStatus, next: &MachineStatus, notes: &mut Vec<Note>) {
    let (was, is) = (is_true(&live.conditions, types::READY), is_true(&next.conditions, types::READY));
    // The connection to a cluster is closed before its Machines are deleted.
    let on_purpose = scope.is_deleting() || scope.is_cluster_deleting() || scope.leaving;
    // The status shows that a new Machine becomes ready.
    if is && !was && scope.node_name().is_some() {
        notes.push(Note::normal("Ready", "The Machine and its Node are ready"));
    } else if was && !is && !on_purpose {
        let message = get(&next.conditions, types::READY).map(|ready| ready.message.clone());
        notes.push(Note::warning("NotReady", message.unwrap_or_default()));
    }
}

/// The stages of a deletion, when they begin; the drain also when it ends.
fn deletion(
    scope: &Scope,
    live: &MachineStatus,
    next: &MachineStatus,
    stage: &Stage,
    now: Timestamp,
    notes: &mut Vec<Note>,
) {
    let before = get(&live.conditions, types::DELETING).filter(|c| c.status == TRUE);
    let before = before.map(|condition| condition.reason.as_str()).unwrap_or_default();
    let message = get(&next.conditions, types::DELETING).map(|c| c.message.clone()).unwrap_or_default();
    if let Stage::DrainBlocked(why) = stage {
        notes.push(Note::warning("FailedDrainNode", why.to_string()).standing());
    }
    if let Stage::InfrastructureBlocked(why) | Stage::BootstrapBlocked(why) = stage {
        notes.push(Note::warning("FailedDelete", why.to_string()).standing());
    }
    if before == stage.reason() {
        return;
    }
    let node = live.node_ref.as_ref().map(|node| node.name.as_str()).unwrap_or_default();
    if before == reasons::DRAINING_NODE {
        notes.push(match drain_limit(scope, live).filter(|(due, _)| *due <= now) {
            Some((_, limit)) => {
                let message =
                    format!("Node {node} was not drained within {limit} s; continuing without draining");
                Note::warning("FailedDrainNode", message)
            }
            None => Note::normal("SuccessfulDrainNode", format!("Drained Node {node}")),
        });
    }
    if before == reasons::WAITING_FOR_VOLUME_DETACH {
        notes.push(Note::normal("NodeVolumesDetached", format!("All volumes of Node {node} are detached")));
    }
    match stage {
        Stage::DrainBlocked(_) | Stage::InfrastructureBlocked(_) | Stage::BootstrapBlocked(_) => {}
        Stage::Draining { node, .. } => {
            notes.push(Note::normal(stage.reason(), format!("Draining Node {node}")));
        }
        // Its end gives an event.
        Stage::Node(_) | Stage::Done => {}
        _ => notes.push(Note::normal(stage.reason(), message)),
    }
}

/// When the drain times out, and after how many seconds.
fn drain_limit(scope: &Scope, live: &MachineStatus) -> Option<(Timestamp, i32)> {
    let limit =
        scope.machine.spec.deletion.as_ref()?.node_drain_timeout_seconds.filter(|limit| *limit > 0)?;
    let since = live.deletion.as_ref()?.node_drain_start_time.as_ref()?.0;
    Some((since.checked_add(SignedDuration::from_secs(i64::from(limit))).ok()?, limit))
}

/// A write that succeeded.
pub fn done(action: &Action) -> Option<Note> {
    match action {
        Action::DeleteNode(name) => {
            Some(Note::normal("SuccessfulDeleteNode", format!("Deleted Node {name}")))
        }
        Action::RemoveFinalizer => Some(Note::normal("Deleted", "The Machine has been deleted")),
        _ => None,
    }
}

/// A write that failed. It is tried again, so it is a lasting state.
pub fn failed(action: &Action, error: &str) -> Option<Note> {
    let (reason, doing) = match action {
        Action::Cordon(name) => ("FailedDrainNode", format!("cordon Node {name}")),
        Action::Evict { .. } => ("FailedDrainNode", "evict pods".to_owned()),
        Action::DeleteNode(name) => ("FailedDeleteNode", format!("delete Node {name}")),
        Action::Delete(part) => ("FailedDelete", format!("delete {part:?}").to_lowercase()),
        _ => return None,
    };
    Some(Note::warning(reason, format!("Failed to {doing}: {error}")).standing())
}
