//! How a result changes a status. Pure.

use drover_plan::{Probe, ProbeStatus};

/// Counts saturate at the thresholds, so that a steady state writes nothing. A negative threshold is never reached, as
/// in the original.
pub(super) fn next(status: ProbeStatus, probe: &Probe, success: bool) -> ProbeStatus {
    let threshold = |value: i64, default| if value == 0 { default } else { value };
    let count = |count: i64, enough: i64| count.max(0).saturating_add(1).min(enough.max(0));
    if success {
        let enough = threshold(probe.success_threshold, 1);
        let count = count(status.success_count, enough);
        let reached = enough > 0 && count >= enough;
        ProbeStatus { healthy: status.healthy || reached, success_count: count, failure_count: 0 }
    } else {
        let enough = threshold(probe.failure_threshold, 3);
        let count = count(status.failure_count, enough);
        let reached = enough > 0 && count >= enough;
        ProbeStatus { healthy: status.healthy && !reached, success_count: 0, failure_count: count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_counts_and_thresholds_are_accepted() {
        for extreme in [i64::MIN, -1, 0, i64::MAX] {
            let probe = Probe { success_threshold: extreme, failure_threshold: extreme, ..Probe::default() };
            let status = ProbeStatus { healthy: true, success_count: extreme, failure_count: extreme };
            assert_eq!(next(status, &probe, true).failure_count, 0);
            assert_eq!(next(status, &probe, false).success_count, 0);
        }
        let probe = Probe { success_threshold: i64::MAX, ..Probe::default() };
        let status = ProbeStatus { success_count: i64::MAX, ..ProbeStatus::default() };
        assert!(next(status, &probe, true).healthy);
    }

    #[test]
    fn a_negative_threshold_is_never_reached() {
        let probe = Probe { success_threshold: -1, failure_threshold: -1, ..Probe::default() };
        for healthy in [true, false] {
            let status = ProbeStatus { healthy, ..ProbeStatus::default() };
            assert_eq!(next(status, &probe, true), status);
            assert_eq!(next(status, &probe, false), status);
        }
    }

    #[test]
    fn agent_check_26_thresholds_change_the_status() {
        let probe = Probe { success_threshold: 2, ..Probe::default() };
        let mut status = ProbeStatus::default();
        status = next(status, &probe, true);
        assert_eq!(status, ProbeStatus { healthy: false, success_count: 1, failure_count: 0 });
        status = next(status, &probe, true);
        assert_eq!(status, ProbeStatus { healthy: true, success_count: 2, failure_count: 0 });
        assert_eq!(next(status, &probe, true), status, "saturated");
        for failures in 1..=2 {
            status = next(status, &probe, false);
            assert_eq!(status, ProbeStatus { healthy: true, success_count: 0, failure_count: failures });
        }
        status = next(status, &probe, false);
        assert_eq!(status, ProbeStatus { healthy: false, success_count: 0, failure_count: 3 });
        assert_eq!(next(status, &probe, false), status, "saturated");
    }
}
