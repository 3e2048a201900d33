//! The state of one connection, and when it must be closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::Version;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::limiter::Slot;
use crate::limits::{ANONYMOUS_ANSWERS, CANCELLED_REQUESTS, Limits};

/// The state of a connection, shared by its handler, its socket and its deadlines.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) slot: Slot,
    authenticated: AtomicBool,
    /// It is to be closed at once: nothing that the peer still sends is read.
    cut: AtomicBool,
    /// Bytes in both directions.
    moved: AtomicU64,
    requests: Mutex<Requests>,
    /// Limits how many responses to an unauthenticated caller are sent at once.
    pub(crate) answers: Arc<Semaphore>,
}

#[derive(Clone, Debug)]
struct Requests {
    in_flight: usize,
    /// At least one request was received.
    any: bool,
    http1: bool,
    /// When the last request ended, and when the current series of overlapping requests began.
    idle_since: Instant,
    busy_since: Instant,
    /// When the first byte after the last request was received.
    head: Option<Instant>,
    cancelled: usize,
}

/// A period in which an unauthenticated caller must make progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    began: Instant,
    moved: u64,
}

/// What to do about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Check again at this time.
    Wait(Instant),
    /// No request was received in time: close with the protocol's own goodbye.
    Idle,
    /// Close at once.
    Cut(&'static str),
}

impl Activity {
    pub(crate) fn new(slot: Slot, now: Instant) -> Self {
        let requests = Requests {
            in_flight: 0,
            any: false,
            http1: false,
            idle_since: now,
            busy_since: now,
            head: None,
            cancelled: 0,
        };
        Self {
            slot,
            authenticated: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            requests: Mutex::new(requests),
            answers: Arc::new(Semaphore::new(ANONYMOUS_ANSWERS)),
        }
    }

    /// The handshake is complete: a request is expected from now on.
    pub(crate) fn handshake_done(&self, now: Instant) {
        self.requests.lock().idle_since = now;
    }

    pub(crate) fn mark_authenticated(&self) {
        if !self.authenticated.swap(true, Ordering::Relaxed) {
            self.slot.leave();
        }
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut requests = self.requests.lock();
        if requests.in_flight == 0 && requests.head.is_none() {
            requests.head = Some(Instant::now());
        }
    }

    /// Counts a request as in flight until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>, version: Version) -> InFlight {
        let mut requests = self.requests.lock();
        if requests.in_flight == 0 {
            requests.busy_since = Instant::now();
        }
        requests.in_flight += 1;
        requests.any = true;
        requests.http1 = version < Version::HTTP_2;
        requests.head = None;
        self.slot.requests.fetch_add(1, Ordering::Relaxed);
        InFlight { activity: self.clone(), answered: false }
    }

    /// What to do now. The caller keeps `period` from one call to the next.
    pub(crate) fn verdict(&self, limits: &Limits, period: &mut Option<Period>, now: Instant) -> Verdict {
        let requests = self.requests.lock().clone();
        let moved = self.moved.load(Ordering::Relaxed);
        requests.verdict(self.is_authenticated(), moved, limits, period, now)
    }
}

impl Requests {
    fn verdict(
        &self,
        authenticated: bool,
        moved: u64,
        limits: &Limits,
        period: &mut Option<Period>,
        now: Instant,
    ) -> Verdict {
        // No deadline that an event in the meantime can set is earlier than this.
        let next = now + limits.headers.min(limits.idle).min(limits.stall);
        match self.evaluate(authenticated, moved, limits, period, now) {
            Verdict::Wait(until) => Verdict::Wait(until.min(next)),
            verdict => verdict,
        }
    }

    fn evaluate(
        &self,
        authenticated: bool,
        moved: u64,
        limits: &Limits,
        period: &mut Option<Period>,
        now: Instant,
    ) -> Verdict {
        if self.in_flight == 0 {
            *period = None;
            return self.waiting(limits, now);
        }
        if authenticated {
            return Verdict::Wait(now + limits.idle);
        }
        let current = match *period {
            Some(current) if current.began >= self.busy_since => current,
            _ => Period { began: now, moved },
        };
        *period = Some(current);
        let end = current.began + limits.stall;
        if now < end {
            return Verdict::Wait(end);
        }
        if moved.saturating_sub(current.moved) < limits.progress {
            return Verdict::Cut("an anonymous request made no progress");
        }
        *period = Some(Period { began: now, moved });
        Verdict::Wait(now + limits.stall)
    }

    /// Between requests, or before the first one.
    fn waiting(&self, limits: &Limits, now: Instant) -> Verdict {
        if !self.any {
            let end = self.idle_since + limits.headers;
            return if now < end {
                Verdict::Wait(end)
            } else {
                Verdict::Cut("no request was received in time")
            };
        }
        // HTTP/2 sends PINGs and other frames between requests: there, a byte does not begin a request.
        let head = self.head.filter(|_| self.http1).map(|began| began + limits.headers);
        if head.is_some_and(|end| now >= end) {
            return Verdict::Cut("the headers of a request were not received in time");
        }
        let end = self.idle_since + limits.idle;
        if now >= end {
            return Verdict::Idle;
        }
        Verdict::Wait(head.map_or(end, |head| end.min(head)))
    }
}

/// A request in flight, with its response.
#[derive(Debug)]
pub(crate) struct InFlight {
    activity: Arc<Activity>,
    pub(crate) answered: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut requests = self.activity.requests.lock();
        requests.in_flight -= 1;
        requests.cancelled += usize::from(!self.answered);
        if requests.cancelled > CANCELLED_REQUESTS && !self.activity.is_authenticated() {
            self.activity.slot.evicted.cancel();
        }
        if requests.in_flight == 0 {
            requests.idle_since = Instant::now();
        }
        self.activity.slot.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn requests(now: Instant) -> Requests {
        Requests {
            in_flight: 0,
            any: true,
            http1: false,
            idle_since: now,
            busy_since: now,
            head: None,
            cancelled: 0,
        }
    }

    fn limits() -> Limits {
        let seconds = Duration::from_secs;
        Limits {
            headers: seconds(20),
            idle: seconds(100),
            stall: seconds(30),
            progress: 1000,
            ..Limits::default()
        }
    }

    fn at(requests: &Requests, authenticated: bool, now: Instant) -> Verdict {
        requests.verdict(authenticated, 0, &limits(), &mut None, now)
    }

    #[test]
    fn the_first_request_has_a_shorter_deadline_than_later_ones() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let first = Requests { any: false, ..requests(start) };
        assert_eq!(at(&first, false, after(19)), Verdict::Wait(after(20)));
        assert!(matches!(at(&first, false, after(20)), Verdict::Cut(_)));
        let next = requests(start);
        assert_eq!(at(&next, false, after(20)), Verdict::Wait(after(40)), "checked again");
        assert_eq!(at(&next, false, after(90)), Verdict::Wait(after(100)));
        assert_eq!(at(&next, true, after(100)), Verdict::Idle);
    }

    #[test]
    fn a_byte_starts_the_header_deadline_in_http_1_only() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let begun = Requests { head: Some(after(50)), ..requests(start) };
        assert_eq!(at(&begun, true, after(80)), Verdict::Wait(after(100)), "a PING does not begin a request");
        let begun = Requests { http1: true, ..begun };
        assert_eq!(at(&begun, true, after(60)), Verdict::Wait(after(70)));
        assert!(matches!(at(&begun, true, after(70)), Verdict::Cut(_)));
    }

    #[test]
    fn only_unauthenticated_requests_must_make_progress() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let busy = Requests { in_flight: 1, ..requests(start) };
        assert!(matches!(at(&busy, true, after(1_000_000)), Verdict::Wait(_)));
        let mut period = None;
        let mut look = |moved, now| busy.verdict(false, moved, &limits(), &mut period, now);
        assert_eq!(look(0, after(0)), Verdict::Wait(after(20)));
        assert_eq!(look(1500, after(20)), Verdict::Wait(after(30)));
        assert_eq!(look(1500, after(30)), Verdict::Wait(after(50)));
        assert!(matches!(look(2499, after(60)), Verdict::Cut(_)));
        // A later request has its own period.
        let mut period = Some(Period { began: start, moved: 0 });
        let later = Requests { busy_since: after(29), ..busy };
        assert_eq!(later.verdict(false, 0, &limits(), &mut period, after(30)), Verdict::Wait(after(50)));
    }
}
