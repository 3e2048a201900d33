//! When a periodic instruction runs next. Pure.

use drover_plan::{PeriodicInstruction, PeriodicInstructionOutput};
use jiff::{SignedDuration, Timestamp};

use crate::unix_date;

const DEFAULT_PERIOD: i64 = 600;
const RETRY: i64 = 30;

/// The earliest next run: a period after the last success, and after a failure 30 s for each failure in a row, up to
/// six. Times in the future are a clock that was set back, and count for nothing.
pub fn next_run(
    instruction: &PeriodicInstruction,
    last: Option<&PeriodicInstructionOutput>,
    now: Timestamp,
) -> Timestamp {
    let Some(last) = last else { return now };
    let after = |text: &str, seconds: i64| {
        let at = unix_date::parse(text).filter(|at| *at <= now)?;
        at.checked_add(SignedDuration::from_secs(seconds)).ok()
    };
    let period = if instruction.period_seconds > 0 { instruction.period_seconds } else { DEFAULT_PERIOD };
    let success = after(&last.last_successful_run_time, period);
    let failure = after(&last.last_failed_run_time, RETRY * last.failures.clamp(1, 6));
    success.max(failure).unwrap_or(now)
}

/// What is reported after a run.
pub fn record(
    last: Option<&PeriodicInstructionOutput>,
    name: &str,
    exit_code: i64,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    now: Timestamp,
) -> PeriodicInstructionOutput {
    let mut output = PeriodicInstructionOutput {
        name: name.to_owned(),
        stdout,
        stderr,
        exit_code,
        last_successful_run_time: last.map(|last| last.last_successful_run_time.clone()).unwrap_or_default(),
        ..Default::default()
    };
    if exit_code == 0 {
        output.last_successful_run_time = unix_date::format(now);
    } else {
        output.failures = last.map_or(0, |last| last.failures) + 1;
        output.last_failed_run_time = unix_date::format(now);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn wait(instruction: &PeriodicInstruction, last: &PeriodicInstructionOutput, now: i64) -> i64 {
        next_run(instruction, Some(last), at(now)).duration_since(at(now)).as_secs()
    }

    #[test]
    fn agent_check_23_a_success_rests_for_the_period() {
        let instruction = PeriodicInstruction { period_seconds: 600, ..Default::default() };
        assert_eq!(next_run(&instruction, None, at(0)), at(0));
        let last = record(None, "p", 0, vec![], vec![], at(0));
        assert_eq!(wait(&instruction, &last, 0), 600);
        assert_eq!(wait(&instruction, &last, 599), 1);
        assert!(wait(&instruction, &last, 600) <= 0);
        assert_eq!(wait(&PeriodicInstruction::default(), &last, 0), 600, "the default period");
        assert_eq!(wait(&instruction, &last, -100), 0, "the clock was set back");
    }

    #[test]
    fn agent_check_24_failures_rest_longer_up_to_180_seconds() {
        let instruction = PeriodicInstruction { period_seconds: 5, ..Default::default() };
        let mut last = record(None, "p", 0, vec![], vec![], at(0));
        let mut gaps = Vec::new();
        for _ in 0..10 {
            last = record(Some(&last), "p", 1, vec![], vec![], at(1000));
            gaps.push(wait(&instruction, &last, 1000));
        }
        assert_eq!(gaps, [30, 60, 90, 120, 150, 180, 180, 180, 180, 180]);
        assert_eq!(last.failures, 10);
        assert!(!last.last_successful_run_time.is_empty());
        let last = record(Some(&last), "p", 0, vec![], vec![], at(2000));
        assert_eq!((last.failures, last.last_failed_run_time.as_str()), (0, ""));
    }
}
