//! Decides whether the plan is applied now, later or not at all. Pure.
//!
//! There are two protocols. With the key `plan-state`, the server requests a run with `pending`, and the agent answers
//! with a state. Without it, the plan's checksum is compared with `applied-checksum`, and the first check after a start
//! always applies the plan.

use drover_plan::{PlanState, keys};
use jiff::{SignedDuration, Timestamp};

use super::secret::Data;
use crate::unix_date;

/// The pause after a failed attempt.
pub const COOLDOWN: SignedDuration = SignedDuration::from_secs(30);

/// The input of a decision.
pub struct Scope<'a> {
    /// The data of the secret (the plan itself can be omitted).
    pub data: &'a Data,
    /// The checksum of the plan; `None` if there is no plan.
    pub checksum: Option<&'a str>,
    /// There was no decision since the process started or the secret was recreated.
    pub first: bool,
    /// The time since the last failure of this plan that this process saw, by the monotonic clock.
    pub failed_since: Option<SignedDuration>,
    /// The current time.
    pub now: Timestamp,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is no plan yet.
    NoPlan,
    /// Apply now.
    Apply {
        /// The number of the attempt: the same after a crash, higher after a failure.
        attempt: i64,
        /// Write `in-progress` and the next revision first.
        commit: bool,
    },
    /// Apply after this time.
    Wait(SignedDuration),
    /// Nothing to do for this plan.
    Idle(Idle),
}

/// Why there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// The plan is applied.
    Applied,
    /// It failed the maximum number of times.
    GivenUp,
    /// The state is final, but belongs to another plan: the server has not requested this one.
    NotRequested,
    /// `cancelled`, or a state that this agent does not know.
    Unsupported,
}

/// Decides what to do.
pub fn decide(scope: &Scope<'_>) -> Decision {
    let Some(checksum) = scope.checksum else { return Decision::NoPlan };
    let failures = failures(scope.data, checksum);
    let Some(state) = state_bytes(scope.data) else { return by_checksum(scope, checksum, failures) };
    let attempt = failures.saturating_add(1);
    match PlanState::parse(state) {
        // If the plan is requested again after failures, the count continues: otherwise scripts that run once per
        // attempt number would treat the new attempt as already done.
        Some(PlanState::Pending) => Decision::Apply { attempt, commit: true },
        Some(PlanState::InProgress) => match cooldown(scope, failures) {
            Some(wait) => Decision::Wait(wait),
            None => Decision::Apply { attempt, commit: false },
        },
        Some(PlanState::Succeeded) if text(scope.data, keys::APPLIED_CHECKSUM) == checksum => {
            Decision::Idle(Idle::Applied)
        }
        Some(PlanState::Failed) if failures > 0 => Decision::Idle(Idle::GivenUp),
        Some(PlanState::Succeeded | PlanState::Failed) => Decision::Idle(Idle::NotRequested),
        Some(PlanState::Cancelled) | None => Decision::Idle(Idle::Unsupported),
    }
}

fn by_checksum(scope: &Scope<'_>, checksum: &str, failures: i64) -> Decision {
    if gives_up(scope.data, failures) {
        return Decision::Idle(Idle::GivenUp);
    }
    if !scope.first && text(scope.data, keys::APPLIED_CHECKSUM) == checksum {
        return Decision::Idle(Idle::Applied);
    }
    match cooldown(scope, failures) {
        Some(wait) => Decision::Wait(wait),
        None => Decision::Apply { attempt: failures.saturating_add(1), commit: false },
    }
}

/// Whether a plan with this many failures is not retried.
pub fn gives_up(data: &Data, failures: i64) -> bool {
    let most = text(data, keys::MAX_FAILURES).parse::<i64>().unwrap_or(-1);
    failures > 0 && most >= 0 && failures >= most
}

/// The failures of this plan.
pub fn failures(data: &Data, checksum: &str) -> i64 {
    if text(data, keys::FAILED_CHECKSUM) != checksum {
        return 0;
    }
    number(data, keys::FAILURE_COUNT).max(0)
}

/// The key, unless it is empty.
pub fn state_bytes(data: &Data) -> Option<&[u8]> {
    data.get(keys::PLAN_STATE).map(Vec::as_slice).filter(|state| !state.is_empty())
}

/// A key as text; empty if it is absent or not valid UTF-8.
pub fn text<'a>(data: &'a Data, key: &str) -> &'a str {
    data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// A key as a number; 0 if it is absent or invalid.
pub fn number(data: &Data, key: &str) -> i64 {
    text(data, key).parse().unwrap_or(0)
}

fn cooldown(scope: &Scope<'_>, failures: i64) -> Option<SignedDuration> {
    if failures == 0 {
        return None;
    }
    // Prefer the time that this process measured, because the wall clock can be set. A time in the future is ignored.
    let passed = scope.failed_since.or_else(|| {
        let last = unix_date::parse(text(scope.data, keys::LAST_APPLY_TIME))?;
        Some(scope.now.duration_since(last)).filter(|passed| !passed.is_negative())
    })?;
    Some(COOLDOWN - passed).filter(|wait| wait.is_positive())
}

#[cfg(test)]
mod tests;
