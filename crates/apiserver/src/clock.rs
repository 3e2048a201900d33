//! The clock abstraction: all timestamps and ages come from a [`Clock`].

use jiff::{SignedDuration, Timestamp};

/// Wall-clock time. Code waits with `tokio::time`, so a test that pauses tokio's time should use [`TokioClock`], which
/// advances with it.
pub trait Clock: Send + Sync + 'static {
    /// The current instant.
    fn now(&self) -> Timestamp;
}

/// The clock of the host.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that starts at a given time and advances with `tokio::time`, also when that is paused.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock whose current time is `start`.
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
