//! Time as an input.

use jiff::{SignedDuration, Timestamp};

/// The source of time for controllers. Deadlines use tokio's timer.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that follows tokio's timer, so that paused (virtual) time also applies to it.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
    base: Timestamp,
}

impl TokioClock {
    /// A clock that starts at `base`. Must be called inside a runtime.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { start: tokio::time::Instant::now(), base }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
