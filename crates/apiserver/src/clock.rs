//! The seam for time: everything that stamps an object or ages history asks a [`Clock`].

use jiff::{SignedDuration, Timestamp};

/// Wall-clock time. Waiting is done with `tokio::time`, so a test that pauses tokio's time
/// should use [`TokioClock`], which moves with it.
pub trait Clock: Send + Sync + 'static {
    /// The current instant.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that starts at a given instant and advances with `tokio::time`, also when that is paused.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `start` now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, origin: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.origin.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.start.checked_add(elapsed).unwrap_or(self.start)
    }
}

/// Kubernetes' `metav1.Time`: RFC 3339, UTC, whole seconds.
pub fn rfc3339_seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Kubernetes' `metav1.MicroTime`: RFC 3339, UTC, six digits.
pub fn rfc3339_micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
