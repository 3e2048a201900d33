//! Computes when a periodic instruction runs next. Pure.

use std::time::Duration;

use drover_plan::{PeriodicInstruction, PeriodicInstructionOutput};
use jiff::Timestamp;

use super::PeriodicOutputs;
use crate::{duration, unix_date};

const DEFAULT_PERIOD: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(30);

/// The earliest time of the next run: one period after the last success; after failures, 30 s for each consecutive
/// failure, up to six. Times in the future are ignored, because the clock was set back.
pub fn next_run(
    instruction: &PeriodicInstruction,
    last: Option<&PeriodicInstructionOutput>,
    now: Timestamp,
) -> Timestamp {
    let Some(last) = last else { return now };
    let after = |text: &str, span: Duration| {
        let at = unix_date::parse(text).filter(|at| *at <= now)?;
        Some(at.checked_add(span).unwrap_or(Timestamp::MAX))
    };
    let period = duration::positive(instruction.period_seconds).unwrap_or(DEFAULT_PERIOD);
    let success = after(&last.last_successful_run_time, period);
    let failure =
        after(&last.last_failed_run_time, RETRY * u32::try_from(last.failures.clamp(1, 6)).unwrap_or(6));
    success.max(failure).unwrap_or(now)
}

/// The state that the next runs depend on, without outputs, which can be large and are only for the report.
pub fn without_outputs(runs: &PeriodicOutputs) -> PeriodicOutputs {
    let without = |run: &PeriodicInstructionOutput| PeriodicInstructionOutput {
        name: run.name.clone(),
        stdout: Vec::new(),
        stderr: Vec::new(),
        exit_code: run.exit_code,
        last_successful_run_time: run.last_successful_run_time.clone(),
        failures: run.failures,
        last_failed_run_time: run.last_failed_run_time.clone(),
    };
    runs.iter().map(|(name, run)| (name.clone(), without(run))).collect()
}

/// The record of a run for the report.
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
        output.failures = last.map_or(0, |last| last.failures).saturating_add(1);
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
    fn agent_check_23_after_a_success_it_waits_for_the_period() {
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
    fn extreme_periods_and_counts_are_accepted() {
        for extreme in [i64::MIN, -1, i64::MAX] {
            let instruction = PeriodicInstruction { period_seconds: extreme, ..Default::default() };
            let last = record(None, "p", 0, vec![], vec![], at(0));
            assert!(wait(&instruction, &last, 0) >= 600, "{extreme}");
            let ended = Timestamp::MAX;
            let last = PeriodicInstructionOutput {
                failures: extreme,
                ..record(None, "p", 0, vec![], vec![], ended)
            };
            assert!(next_run(&instruction, Some(&last), ended) >= ended);
            let failed = record(Some(&last), "p", 1, vec![], vec![], at(0));
            assert_eq!(failed.failures, extreme.saturating_add(1));
            assert!((30..=180).contains(&wait(&instruction, &failed, 0)), "{extreme}");
        }
    }

    #[test]
    fn agent_check_24_pauses_after_failures_grow_to_180_seconds() {
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
