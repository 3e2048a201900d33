//! One infra machine: gates, the create Job, its outcome; or the remove Job and the end. Pure.
//!
//! A Job is rendered once per attempt and never again, so neither a new setting nor a restart runs `create`
//! twice. What was made is judged by the record of attempts in the status, not by whether a Job still exists.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::state::{Machine, Progress};
use crate::settings::Settings;

/// Everything the decision depends on.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub machine: Machine,
    /// The owning CAPI Machine's name; none while unknown or already gone.
    pub capi_machine: Option<String>,
    /// The owner is still a MachineSet: nobody took this machine yet.
    pub owned_by_set: bool,
    /// Why creation cannot begin yet, in the order of the gates.
    pub blocked: Option<String>,
    /// Bootstrap data secret.
    pub bootstrap_secret: Option<String>,
    pub job: Option<JobView>,
    pub namespace_terminating: bool,
    pub settings: Settings,
}

/// The Job as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobView {
    pub remove: bool,
    pub deleting: bool,
    pub complete: bool,
    /// Reason and message of the failure; the termination message of the newest failed pod if there is one.
    pub failed: Option<(String, String)>,
}

/// What to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    AddFinalizer,
    /// Support objects and a fresh Job.
    StartJob {
        remove: bool,
        attempt: i64,
    },
    /// Cancel or clear away the Job and its pods.
    DeleteJob,
    /// Everything but the state secret.
    CleanUp,
    /// Everything.
    CleanUpAll,
    /// Replace the machine whose creation failed.
    DeleteCapiMachine(String),
    /// Let the object go; what may be left behind, if anything.
    DropFinalizer(Option<String>),
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub steps: Vec<Step>,
    pub progress: Progress,
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
    let progress = &mut decision.progress;
    if !scope.machine.has_finalizer {
        decision.steps.push(Step::AddFinalizer);
        return;
    }
    if progress.created == Some(true) {
        if !scope.machine.provider_id.is_empty() && scope.job.is_some() {
            decision.steps.push(Step::CleanUp);
        }
        return;
    }
    if progress.created == Some(false) {
        let pause = scope.settings.delete_machine_on_failure_after.max(LEAST_PAUSE);
        let since = progress.failed_at.unwrap_or(now);
        let due = since.checked_add(pause).unwrap_or(now);
        match &scope.capi_machine {
            Some(machine) if due <= now => decision.steps.push(Step::DeleteCapiMachine(machine.clone())),
            Some(_) => decision.look_again = Some(due),
            None => {}
        }
        return;
    }
    match scope.job.as_ref() {
        Some(job) if job.deleting || job.remove => {}
        Some(job) if job.complete => progress.created = Some(true),
        Some(JobView { failed: Some((reason, message)), .. }) => {
            progress.fail(&scope.machine, false, reason, message, now);
        }
        Some(_) => progress.start(&scope.machine, false),
        None => {
            // Either the first attempt, or the Job was taken away in the middle of one: `create` adopts what
            // an earlier run left, so the same attempt goes on.
            if let Some(why) = &scope.blocked {
                progress.waiting = Some(why.clone());
                return;
            }
            if progress.attempt == 0 {
                progress.attempt = 1;
            }
            progress.start(&scope.machine, false);
            decision.steps.push(Step::StartJob { remove: false, attempt: progress.attempt });
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
        decision.steps.push(Step::DropFinalizer(left));
        return;
    }
    let nothing_made = progress.attempt == 0 && scope.job.is_none();
    if nothing_made || (scope.owned_by_set && progress.attempt == 0) {
        decision.steps.extend([Step::CleanUpAll, Step::DropFinalizer(None)]);
        return;
    }
    match scope.job.as_ref() {
        Some(job) if job.deleting => progress.waiting = Some("waiting for the former Job to end".to_owned()),
        // Whatever the create Job was doing ends here; `rm` then clears away what it left.
        Some(job) if !job.remove => {
            progress.start(&scope.machine, true);
            decision.steps.push(Step::DeleteJob);
        }
        Some(job) if job.complete => {
            progress.removed = Some(true);
            decision.steps.extend([Step::CleanUpAll, Step::DropFinalizer(None)]);
        }
        Some(JobView { failed: Some((reason, message)), .. }) => {
            progress.fail(&scope.machine, true, reason, message, now);
            if scope.machine.force_remove {
                decision.steps.extend([Step::CleanUpAll, Step::DropFinalizer(Some(leftover()))]);
                return;
            }
            let due = progress.failed_at.and_then(|at| at.checked_add(REMOVE_PAUSE).ok()).unwrap_or(now);
            if due <= now {
                decision.steps.push(Step::DeleteJob);
            } else {
                decision.look_again = Some(due);
            }
        }
        Some(_) => progress.start(&scope.machine, true),
        None if scope.machine.force_remove && progress.removed == Some(false) => {
            decision.steps.extend([Step::CleanUpAll, Step::DropFinalizer(Some(leftover()))]);
        }
        None => {
            progress.attempt += 1;
            progress.start(&scope.machine, true);
            decision.steps.push(Step::StartJob { remove: true, attempt: progress.attempt });
        }
    }
}

/// The status to apply.
pub fn status(machine: &Machine, progress: &Progress, now: Timestamp) -> Value {
    let mut status = json!({
        "conditions": progress.conditions(machine, now),
        "jobName": super::objects::Names::of(&machine.name).provision,
        "attempt": progress.attempt,
        "ready": progress.created == Some(true),
        "initialization": {"provisioned": !machine.provider_id.is_empty()},
        "driverUrl": progress.driver_url,
        "driverHash": progress.driver_hash,
        "cloudCredentialSecretName": progress.credential,
    });
    if let Some((reason, message)) = &progress.failure {
        status["failureReason"] = json!(reason);
        status["failureMessage"] = json!(message);
    }
    if let Some(at) = progress.failed_at {
        status["failedAt"] = json!(at.to_string());
    }
    status
}
