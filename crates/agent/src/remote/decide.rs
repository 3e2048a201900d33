//! Whether the plan is to be applied now, later or not. Pure.
//!
//! Two dialects. With the key `plan-state` the server asks by writing `pending`, and the answer is a state. Without it,
//! the plan's checksum is compared with `applied-checksum`, and the first look after a start always applies.

use drover_plan::{PlanState, keys};
use jiff::{SignedDuration, Timestamp};

use super::secret::Data;
use crate::unix_date;

/// Rest after a failed attempt.
pub const COOLDOWN: SignedDuration = SignedDuration::from_secs(30);

/// What is known when deciding.
pub struct Scope<'a> {
    /// The secret's data (the plan itself may be left out).
    pub data: &'a Data,
    /// Checksum of the plan; `None` if there is none.
    pub checksum: Option<&'a str>,
    /// Nothing was decided since the process started, or since the secret was made anew.
    pub first: bool,
    /// When this process saw the last failure of this plan, by a clock that nobody sets.
    pub failed_since: Option<SignedDuration>,
    /// Now.
    pub now: Timestamp,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody has planned yet.
    NoPlan,
    /// Apply now.
    Apply {
        /// The attempt's number: stable when the same attempt runs again after a crash, higher after a failure.
        attempt: i64,
        /// Write `in-progress` and the next revision first.
        commit: bool,
    },
    /// Apply once this much time has passed.
    Wait(SignedDuration),
    /// Nothing to do for this plan.
    Rest(Rest),
}

/// Why there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It is applied.
    Applied,
    /// It failed as often as it may.
    GivenUp,
    /// The state is terminal, but for another plan than this one: the server has not asked for it.
    NotAsked,
    /// `cancelled`, or a state of a later version.
    Foreign,
}

/// Decides.
pub fn decide(scope: &Scope<'_>) -> Decision {
    let Some(checksum) = scope.checksum else { return Decision::NoPlan };
    let failures = failures(scope.data, checksum);
    let Some(state) = state_bytes(scope.data) else { return by_checksum(scope, checksum, failures) };
    let attempt = failures.saturating_add(1);
    match PlanState::parse(state) {
        // Asked for again after failures, the count goes on: scripts that run once per attempt number would otherwise
        // take the new attempt for one that they have done.
        Some(PlanState::Pending) => Decision::Apply { attempt, commit: true },
        Some(PlanState::InProgress) => match cooldown(scope, failures) {
            Some(wait) => Decision::Wait(wait),
            None => Decision::Apply { attempt, commit: false },
        },
        Some(PlanState::Succeeded) if text(scope.data, keys::APPLIED_CHECKSUM) == checksum => {
            Decision::Rest(Rest::Applied)
        }
        Some(PlanState::Failed) if failures > 0 => Decision::Rest(Rest::GivenUp),
        Some(PlanState::Succeeded | PlanState::Failed) => Decision::Rest(Rest::NotAsked),
        Some(PlanState::Cancelled) | None => Decision::Rest(Rest::Foreign),
    }
}

fn by_checksum(scope: &Scope<'_>, checksum: &str, failures: i64) -> Decision {
    if gives_up(scope.data, failures) {
        return Decision::Rest(Rest::GivenUp);
    }
    if !scope.first && text(scope.data, keys::APPLIED_CHECKSUM) == checksum {
        return Decision::Rest(Rest::Applied);
    }
    match cooldown(scope, failures) {
        Some(wait) => Decision::Wait(wait),
        None => Decision::Apply { attempt: failures.saturating_add(1), commit: false },
    }
}

/// Whether a plan that failed so often is left alone.
pub fn gives_up(data: &Data, failures: i64) -> bool {
    let most = text(data, keys::MAX_FAILURES).parse::<i64>().unwrap_or(-1);
    failures > 0 && most >= 0 && failures >= most
}

/// Failures of this very plan.
pub fn failures(data: &Data, checksum: &str) -> i64 {
    if text(data, keys::FAILED_CHECKSUM) != checksum {
        return 0;
    }
    number(data, keys::FAILURE_COUNT).max(0)
}

/// The key, unless empty.
pub fn state_bytes(data: &Data) -> Option<&[u8]> {
    data.get(keys::PLAN_STATE).map(Vec::as_slice).filter(|state| !state.is_empty())
}

/// A key as text; absent and not UTF-8 are empty.
pub fn text<'a>(data: &'a Data, key: &str) -> &'a str {
    data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// A key as a number; anything else is 0.
pub fn number(data: &Data, key: &str) -> i64 {
    text(data, key).parse().unwrap_or(0)
}

fn cooldown(scope: &Scope<'_>, failures: i64) -> Option<SignedDuration> {
    if failures == 0 {
        return None;
    }
    // The process's own memory is better than the wall clock, which may have been set. A time in the future tells
    // nothing.
    let passed = scope.failed_since.or_else(|| {
        let last = unix_date::parse(text(scope.data, keys::LAST_APPLY_TIME))?;
        Some(scope.now.duration_since(last)).filter(|passed| !passed.is_negative())
    })?;
    Some(COOLDOWN - passed).filter(|wait| wait.is_positive())
}

#[cfg(test)]
mod tests;
