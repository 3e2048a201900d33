//! The health of one cluster from its probes. Pure: time is an input.

use std::time::Duration;

use drover_access_api::{Disconnected, Why};
use tokio::time::Instant;

/// Interval between probes of a healthy cluster; the same as in Cluster API.
const PERIOD: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// The results of one cluster's probes.
pub(super) struct Health {
    /// When it responded last, or when the connection was created.
    answered: Instant,
    failures: u32,
    /// How long a cluster that does not respond keeps its last state.
    patience: Duration,
    state: Result<(), Disconnected>,
}

impl Health {
    pub(super) fn new(why: Why, patience: Duration, now: Instant) -> Self {
        let state = Err(Disconnected { why, expected: !patience.is_zero() });
        Self { answered: now, failures: 0, patience, state }
    }

    pub(super) fn state(&self) -> &Result<(), Disconnected> {
        &self.state
    }

    /// Records a result; `true` if it changes the state.
    pub(super) fn record(&mut self, answer: Result<(), Why>, now: Instant) -> bool {
        let state = match answer {
            Ok(()) => {
                (self.answered, self.failures) = (now, 0);
                Ok(())
            }
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                // A single failure does not change the state.
                Err(Disconnected { why, expected: now.duration_since(self.answered) < self.patience })
            }
        };
        let changed = state != self.state;
        self.state = state;
        changed
    }

    /// Time until the next probe.
    pub(super) fn pause(&self) -> Duration {
        match self.failures {
            0 => PERIOD,
            failures => LAST_RETRY.min(FIRST_RETRY * 2_u32.saturating_pow(failures - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_runtime::ObjectKey;

    #[test]
    fn a_cluster_that_does_not_respond_keeps_its_state_for_50_seconds_and_is_probed_less_often() {
        let key = ObjectKey::new("ns", "demo");
        let (start, why) = (Instant::now(), Why::Unauthorized(key.clone()));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = Health::new(Why::Connecting(key), Duration::from_secs(50), start);
        assert!(health.record(Ok(()), at(1)));
        assert!(!health.record(Ok(()), at(11)));
        assert_eq!((health.state(), health.pause()), (&Ok(()), PERIOD));
        let lost = |expected| Err(Disconnected { why: why.clone(), expected });
        assert!(health.record(Err(why.clone()), at(21)));
        assert_eq!((health.state(), health.pause().as_secs()), (&lost(true), 1));
        assert!(!health.record(Err(why.clone()), at(60)), "nothing new");
        assert!(health.record(Err(why.clone()), at(61)), "it did not respond again");
        assert_eq!((health.state(), health.pause().as_secs()), (&lost(false), 4));
        for _ in 0..100 {
            health.record(Err(why.clone()), at(100));
        }
        assert_eq!(health.pause(), LAST_RETRY);
        assert!(health.record(Ok(()), at(200)));
        assert_eq!((health.state(), health.pause()), (&Ok(()), PERIOD));
    }
}
