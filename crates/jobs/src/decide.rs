//! Decides the next step for a Job. Pure functions; the time is an argument.

use std::fmt;
use std::time::Duration;

use drover_runtime::conditions::whole_seconds;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Condition of a Job that waits because the maximum number of Jobs is running.
pub const QUEUED: &str = "Queued";
const LIMIT_REACHED: &str = "LimitReached";

/// Reason of an attempt whose runner was interrupted. It does not count as a failure of the Job.
pub const REASON_INTERRUPTED: &str = "Interrupted";

/// The next step for a Job.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Do nothing for now.
    None,
    /// Start a child as a new attempt.
    Start,
    /// Stop the child: the Job is deleted, suspended or has exceeded its deadline.
    Stop,
    /// Write this final status.
    Finish(Box<JobStatus>),
    /// Write this status of a Job that is not finished.
    Status(Box<JobStatus>),
}

/// The attempts of a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    pub succeeded: i32,
    /// Failed attempts, without interrupted ones.
    pub failed: i32,
    /// Whether a child of this runner is running.
    pub running: bool,
}

impl Attempts {
    /// Counts the Pod records of a Job. A record with the phase `Running` but without a child of this runner belongs to
    /// an orphan or to a runner that died. It counts as interrupted.
    pub fn of(pods: &[impl AsRef<Pod>], running: bool) -> Self {
        let mut attempts = Self { running, ..Self::default() };
        for pod in pods {
            let status = pod.as_ref().status.as_ref();
            let interrupted = status.and_then(|s| s.reason.as_deref()) == Some(REASON_INTERRUPTED);
            match status.and_then(|s| s.phase.as_deref()) {
                Some("Succeeded") => attempts.succeeded += 1,
                Some("Failed") if !interrupted => attempts.failed += 1,
                _ => {}
            }
        }
        attempts
    }
}

/// Whether a Job has a final condition.
pub fn is_finished(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

/// The time until the Job's deadline, if it has one.
pub fn time_left(job: &Job, now: Timestamp) -> Option<Duration> {
    let limit = job.spec.as_ref()?.active_deadline_seconds?;
    let started = job.status.as_ref()?.start_time.as_ref()?.0;
    let left = limit.saturating_sub(now.as_second().saturating_sub(started.as_second()));
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// The result of a Job, with the reasons and messages of the Job controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending<'a> {
    Completed,
    DeadlineExceeded,
    BackoffLimitExceeded {
        /// The end of the last attempt's output, which is more helpful than the message of the Job controller.
        output: &'a str,
    },
}

impl Ending<'_> {
    fn reason(&self) -> &'static str {
        match self {
            Self::Completed => "CompletionsReached",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::BackoffLimitExceeded { .. } => "BackoffLimitExceeded",
        }
    }
}

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Completed => "",
            Self::DeadlineExceeded => "Job was active longer than specified deadline",
            Self::BackoffLimitExceeded { output: "" } => "Job has reached the specified backoff limit",
            Self::BackoffLimitExceeded { output } => output,
        })
    }
}

/// Returns the next step for `job`. `message` is the end of the last failed attempt's output.
pub fn decide(job: &Job, attempts: Attempts, message: &str, now: Timestamp) -> Action {
    if is_finished(job) {
        return Action::None;
    }
    let spec = job.spec.as_ref();
    let stop = job.metadata.deletion_timestamp.is_some() || spec.and_then(|s| s.suspend) == Some(true);
    if stop {
        return if attempts.running { Action::Stop } else { Action::None };
    }
    let limit = spec.and_then(|s| s.backoff_limit).unwrap_or(6);
    if attempts.succeeded > 0 {
        return finish(job, attempts, now, &Ending::Completed);
    }
    if time_left(job, now).is_some_and(|left| left.is_zero()) {
        if attempts.running {
            return Action::Stop;
        }
        return finish(job, attempts, now, &Ending::DeadlineExceeded);
    }
    if attempts.failed > limit {
        return finish(job, attempts, now, &Ending::BackoffLimitExceeded { output: message });
    }
    if !attempts.running {
        return Action::Start;
    }
    let desired = active(job, attempts, now);
    if job.status.as_ref() == Some(&desired) { Action::None } else { Action::Status(Box::new(desired)) }
}

/// The status of a Job that waits because the maximum number of Jobs is running; `None` if the Job has it already. The
/// start time is not set.
pub fn queued(job: &Job, attempts: Attempts, now: Timestamp) -> Option<JobStatus> {
    let status = job.status.as_ref();
    let is_queued = |condition: &JobCondition| condition.type_ == QUEUED && condition.status == "True";
    if status.is_some_and(|status| status.conditions.iter().flatten().any(is_queued)) {
        return None;
    }
    let text = "waiting for other Jobs to finish: the maximum number of Jobs is running; \
                it is the value of the Setting machine-job-concurrency";
    let condition = JobCondition {
        type_: QUEUED.into(),
        status: "True".into(),
        reason: Some(LIMIT_REACHED.into()),
        message: Some(text.into()),
        last_probe_time: None,
        last_transition_time: Some(Time(whole_seconds(now))),
    };
    Some(JobStatus {
        start_time: status.and_then(|status| status.start_time.clone()),
        failed: (attempts.failed > 0).then_some(attempts.failed),
        ready: Some(0),
        terminating: Some(0),
        conditions: Some(vec![condition]),
        ..JobStatus::default()
    })
}

/// The delay before another attempt: 10 s, doubled after each failure, at most 6 minutes, as in the Job controller.
pub fn backoff(failed: i32) -> Duration {
    match u32::try_from(failed) {
        Ok(failed) if failed > 0 => {
            Duration::from_secs(10).saturating_mul(1 << (failed - 1).min(8)).min(Duration::from_secs(360))
        }
        _ => Duration::ZERO,
    }
}

fn active(job: &Job, attempts: Attempts, now: Timestamp) -> JobStatus {
    let started = job.status.as_ref().and_then(|status| status.start_time.clone());
    JobStatus {
        start_time: Some(started.unwrap_or(Time(whole_seconds(now)))),
        active: Some(i32::from(attempts.running)),
        ready: Some(i32::from(attempts.running)),
        failed: (attempts.failed > 0).then_some(attempts.failed),
        terminating: Some(0),
        ..JobStatus::default()
    }
}

fn finish(job: &Job, attempts: Attempts, now: Timestamp, ending: &Ending<'_>) -> Action {
    let now = Time(whole_seconds(now));
    let succeeded = *ending == Ending::Completed;
    let condition = |type_: &str| JobCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: Some(ending.reason().into()),
        message: (!succeeded).then(|| ending.to_string()),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    // kube-apiserver accepts the final condition only together with the condition for its cause.
    let (cause, end) =
        if succeeded { ("SuccessCriteriaMet", "Complete") } else { ("FailureTarget", "Failed") };
    Action::Finish(Box::new(JobStatus {
        active: None,
        ready: Some(0),
        succeeded: (attempts.succeeded > 0).then_some(attempts.succeeded),
        completion_time: succeeded.then(|| now.clone()),
        conditions: Some(vec![condition(cause), condition(end)]),
        ..active(job, Attempts { running: false, ..attempts }, now.0)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::batch::v1::JobSpec;
    use k8s_openapi::api::core::v1::PodStatus;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn job(backoff_limit: i32) -> Job {
        let spec = JobSpec {
            backoff_limit: Some(backoff_limit),
            active_deadline_seconds: Some(60),
            ..JobSpec::default()
        };
        Job { spec: Some(spec), ..Job::default() }
    }

    fn running(failed: i32) -> Attempts {
        Attempts { failed, running: true, ..Attempts::default() }
    }

    fn reason(action: &Action) -> &str {
        let Action::Finish(status) = action else { panic!("not finished: {action:?}") };
        status.conditions.as_ref().unwrap()[0].reason.as_deref().unwrap()
    }

    #[test]
    fn a_new_job_is_started_then_marked_active_once() {
        let mut job = job(0);
        assert_eq!(decide(&job, Attempts::default(), "", at(5)), Action::Start);
        let Action::Status(status) = decide(&job, running(0), "", at(5)) else { panic!() };
        assert_eq!(status.start_time.as_ref().unwrap().0, at(5));
        job.status = Some(*status);
        assert_eq!(decide(&job, running(0), "", at(9)), Action::None);
    }

    #[test]
    fn a_queued_job_gets_its_condition_once_and_its_start_time_when_it_starts() {
        let mut job = job(0);
        let status = queued(&job, Attempts::default(), at(5)).unwrap();
        let condition = &status.conditions.as_ref().unwrap()[0];
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("Queued", "True"));
        assert!(condition.message.as_ref().unwrap().contains("machine-job-concurrency"));
        assert_eq!(status.start_time, None);
        job.status = Some(status);
        assert_eq!(queued(&job, Attempts::default(), at(9)), None);
        assert_eq!(decide(&job, Attempts::default(), "", at(500)), Action::Start, "no deadline has passed");
        let Action::Status(status) = decide(&job, running(0), "", at(500)) else { panic!() };
        assert_eq!((status.conditions, status.start_time), (None, Some(Time(at(500)))));
    }

    #[test]
    fn success_completes_and_failures_count_against_the_limit() {
        let done = Attempts { succeeded: 1, ..Attempts::default() };
        let action = decide(&job(0), done, "", at(5));
        assert_eq!(reason(&action), "CompletionsReached");
        let Action::Finish(status) = action else { panic!() };
        assert_eq!(status.completion_time.unwrap().0, at(5));
        let failed = |failed| Attempts { failed, ..Attempts::default() };
        assert_eq!(reason(&decide(&job(0), failed(1), "boom", at(5))), "BackoffLimitExceeded");
        assert_eq!(decide(&job(3), failed(3), "boom", at(5)), Action::Start);
        assert_eq!(reason(&decide(&job(3), failed(4), "boom", at(5))), "BackoffLimitExceeded");
    }

    #[test]
    fn a_deadline_stops_the_child_and_then_fails_the_job() {
        let mut job = job(0);
        job.status = Some(JobStatus { start_time: Some(Time(at(0))), ..JobStatus::default() });
        assert_eq!(time_left(&job, at(20)), Some(Duration::from_secs(40)));
        assert_eq!(decide(&job, running(0), "", at(60)), Action::Stop);
        assert_eq!(reason(&decide(&job, Attempts::default(), "", at(60))), "DeadlineExceeded");
    }

    #[test]
    fn a_deleted_or_suspended_job_is_stopped_and_a_finished_one_ignored() {
        let mut deleted = job(0);
        deleted.metadata.deletion_timestamp = Some(Time(at(1)));
        assert_eq!(decide(&deleted, running(0), "", at(5)), Action::Stop);
        assert_eq!(decide(&deleted, Attempts::default(), "", at(5)), Action::None);
        let mut done = job(0);
        let Action::Finish(status) =
            decide(&done, Attempts { succeeded: 1, ..Attempts::default() }, "", at(5))
        else {
            panic!()
        };
        done.status = Some(*status);
        assert_eq!(decide(&done, Attempts { failed: 9, ..Attempts::default() }, "", at(5)), Action::None);
    }

    #[test]
    fn interrupted_attempts_do_not_count() {
        let pod = |phase: &str, reason: Option<&str>| {
            let status = PodStatus {
                phase: Some(phase.into()),
                reason: reason.map(Into::into),
                ..PodStatus::default()
            };
            std::sync::Arc::new(Pod { status: Some(status), ..Pod::default() })
        };
        let pods = [pod("Failed", Some(REASON_INTERRUPTED)), pod("Failed", None), pod("Running", None)];
        assert_eq!(Attempts::of(&pods, false), Attempts { failed: 1, ..Attempts::default() });
    }
}
