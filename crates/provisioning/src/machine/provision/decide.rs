//! One infra machine: gates, the create Job, its outcome; or the remove Job and the end. Pure.
//!
//! A Job is rendered once per attempt and never again, so neither a new setting nor a restart runs `create`
//! twice. What was created is judged by the record of attempts in the status, not by whether a Job still exists. That is
//! why the record is written before the Job, and the rest of the status last.

use jiff::{SignedDuration, Timestamp};

use super::objects::Names;
use super::scope::{JobView, Scope};
use super::state::Progress;
use super::waits::Waiting;

/// What to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Add the finalizer and, if it is given, the label with the name of the Machine.
    Adopt { machine: Option<String> },
    /// Write the status before a Job is created: an attempt that is not recorded could be forgotten.
    Record,
    /// Support objects and a new Job.
    StartJob { remove: bool, attempt: i64 },
    /// Cancel or clear away the Job and its pods.
    DeleteJob,
    /// What only the creation needed: the Job and the credential.
    CleanUp,
    /// Everything.
    CleanUpAll,
    /// Replace the machine whose creation failed.
    DeleteCapiMachine(String),
    /// Let the object be deleted; what may be left behind, if anything.
    RemoveFinalizer(Option<String>),
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub actions: Vec<Action>,
    pub progress: Progress,
    /// What is waited for.
    pub waiting: Option<Waiting>,
    pub look_again: Option<Timestamp>,
}

/// A failed create is not replaced faster than this, so that a broken driver does not spin.
const LEAST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// A failed removal is tried again after this.
const REMOVE_PAUSE: SignedDuration = SignedDuration::from_mins(5);

/// Decides.
pub fn decide(scope: &Scope, now: Timestamp) -> Decision {
    let mut decision = Decision { progress: scope.machine.progress.clone(), ..Decision::default() };
    if scope.machine.deleting {
        remove(scope, &mut decision, now)
    } else {
        create(scope, &mut decision, now)
    }
    decision.progress.settle(&scope.machine);
    decision
}

fn create(scope: &Scope, decision: &mut Decision, now: Timestamp) {
    // Before it has an owner nothing is created, and nothing has to be removed.
    let begun = !scope.machine.has_finalizer && scope.machine.progress.attempt > 0;
    if begun || (scope.owner.is_some() && !scope.machine.is_adopted()) {
        let machine = scope.owner.clone().filter(|_| scope.machine.capi_machine.is_empty());
        decision.actions.push(Action::Adopt { machine });
        return;
    }
    let progress = &mut decision.progress;
    if progress.created == Some(true) {
        if !scope.machine.provider_id.is_empty() && scope.job.is_some() {
            decision.actions.push(Action::CleanUp);
        }
        return;
    }
    if progress.created == Some(false) {
        let pause = scope.settings.delete_machine_on_failure_after.max(LEAST_PAUSE);
        // The original keeps no time.
        let since = *progress.failed_at.get_or_insert(Timestamp::from_second(now.as_second()).unwrap_or(now));
        let due = since.checked_add(pause).unwrap_or(now);
        match &scope.capi_machine {
            Some(machine) if due <= now => decision.actions.push(Action::DeleteCapiMachine(machine.clone())),
            Some(_) => decision.look_again = Some(due),
            None => {}
        }
        return;
    }
    match scope.job.as_ref() {
        // A machine of the same name was removed before, or is being removed.
        Some(job) if job.remove && !job.deleting && (job.complete || job.failed.is_some()) => {
            decision.actions.push(Action::DeleteJob);
        }
        Some(job) if job.deleting || job.remove => {
            let job = Names::of(&scope.machine.name).provision;
            decision.waiting = Some(Waiting::FormerJob { job });
        }
        Some(job) if job.complete => progress.created = Some(true),
        Some(JobView { failed: Some((reason, message)), .. }) => {
            progress.fail(&scope.machine, false, reason, message, now);
        }
        Some(_) => progress.start(&scope.machine, false),
        None => {
            // Either the first attempt, or the Job was taken away in the middle of one: `create` adopts what
            // an earlier run left, so the same attempt goes on.
            if let Some(waiting) = &scope.blocked {
                decision.waiting = Some(waiting.clone());
                return;
            }
            progress.attempt = progress.attempt.max(1);
            progress.start(&scope.machine, false);
            let start = Action::StartJob { remove: false, attempt: progress.attempt };
            decision.actions.extend([Action::Record, start]);
        }
    }
}

fn remove(scope: &Scope, decision: &mut Decision, now: Timestamp) {
    let progress = &mut decision.progress;
    if !scope.machine.has_finalizer {
        return;
    }
    let leftover = || format!("server of {} may still exist", scope.machine.describe());
    if scope.namespace_terminating {
        let left = (progress.attempt > 0).then(leftover);
        decision.actions.push(Action::RemoveFinalizer(left));
        return;
    }
    let nothing_made = progress.attempt == 0 && scope.job.is_none();
    if nothing_made || (scope.owned_by_set && progress.attempt == 0) {
        decision.actions.extend([Action::CleanUpAll, Action::RemoveFinalizer(None)]);
        return;
    }
    match scope.job.as_ref() {
        Some(job) if job.deleting => {
            let job = Names::of(&scope.machine.name).provision;
            decision.waiting = Some(Waiting::FormerJob { job });
        }
        // Whatever the create Job was doing ends here; `rm` then removes what it left.
        Some(job) if !job.remove => {
            progress.start(&scope.machine, true);
            decision.actions.push(Action::DeleteJob);
        }
        Some(job) if job.complete => {
            progress.removed = Some(true);
            decision.actions.extend([Action::CleanUpAll, Action::RemoveFinalizer(None)]);
        }
        Some(JobView { failed: Some((reason, message)), .. }) => {
            progress.fail(&scope.machine, true, reason, message, now);
            if scope.machine.force_remove {
                decision.actions.extend([Action::CleanUpAll, Action::RemoveFinalizer(Some(leftover()))]);
                return;
            }
            let due = progress.failed_at.and_then(|at| at.checked_add(REMOVE_PAUSE).ok()).unwrap_or(now);
            if due <= now {
                decision.actions.push(Action::DeleteJob);
            } else {
                decision.look_again = Some(due);
            }
        }
        Some(_) => progress.start(&scope.machine, true),
        // Everything was removed, but not all of it could be cleaned up.
        None if progress.removed == Some(true) => {
            decision.actions.extend([Action::CleanUpAll, Action::RemoveFinalizer(None)]);
        }
        None if scope.machine.force_remove && progress.removed == Some(false) => {
            decision.actions.extend([Action::CleanUpAll, Action::RemoveFinalizer(Some(leftover()))]);
        }
        None => {
            progress.attempt += 1;
            progress.start(&scope.machine, true);
            let start = Action::StartJob { remove: true, attempt: progress.attempt };
            decision.actions.extend([Action::Record, start]);
        }
    }
}
