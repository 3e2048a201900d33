//! Durations from the plan, its secret or the configuration, in seconds.
//!
//! They can be any number, but times have a maximum. A year is practically forever for an agent, and can be added to
//! any time.

use std::time::Duration;

/// The maximum duration in seconds.
const LONGEST: u64 = 365 * 24 * 3600;

/// A duration in seconds, at most one year.
pub fn seconds(count: u64) -> Duration {
    Duration::from_secs(count.min(LONGEST))
}

/// The same for a field that can be negative; `None` unless it is positive.
pub fn positive(count: i64) -> Option<Duration> {
    u64::try_from(count).ok().filter(|count| *count > 0).map(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_gives_a_valid_duration() {
        assert_eq!(seconds(5), Duration::from_secs(5));
        assert_eq!(seconds(u64::MAX), Duration::from_secs(LONGEST));
        assert_eq!(positive(i64::MAX), Some(Duration::from_secs(LONGEST)));
        assert_eq!((positive(0), positive(-1), positive(i64::MIN)), (None, None, None));
        assert!(std::time::Instant::now().checked_add(seconds(u64::MAX)).is_some());
    }
}
