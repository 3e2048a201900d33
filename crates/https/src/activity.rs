//! What happens on one connection, and until when it may stay open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::Version;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::gate::Place;
use crate::limits::{ANONYMOUS_ANSWERS, Limits, WITHDRAWN};

/// A connection as its handler, its socket and its deadlines see it.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) place: Place,
    known: AtomicBool,
    /// It is to be closed at once: nothing that its peer still sends is read.
    cut: AtomicBool,
    /// Bytes in both directions.
    moved: AtomicU64,
    requests: Mutex<Requests>,
    /// Answers to a caller who is not known, on their way.
    pub(crate) answers: Arc<Semaphore>,
}

#[derive(Clone, Debug)]
struct Requests {
    in_flight: usize,
    /// There was one at all.
    any: bool,
    http1: bool,
    /// Since when there is none, and since when there is one without a pause.
    quiet: Instant,
    busy: Instant,
    /// When the first byte came after the last request.
    head: Option<Instant>,
    withdrawn: usize,
}

/// A period in which a caller who is not known has to make progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    began: Instant,
    moved: u64,
}

/// What to do about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing can be wrong before this.
    Wait(Instant),
    /// No request came in time; it is closed as the protocol says.
    Idle,
    /// It is closed at once.
    Cut(&'static str),
}

impl Activity {
    pub(crate) fn new(place: Place, now: Instant) -> Self {
        let requests = Requests {
            in_flight: 0,
            any: false,
            http1: false,
            quiet: now,
            busy: now,
            head: None,
            withdrawn: 0,
        };
        Self {
            place,
            known: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            requests: Mutex::new(requests),
            answers: Arc::new(Semaphore::new(ANONYMOUS_ANSWERS)),
        }
    }

    /// The handshake is over: from now on a request is expected.
    pub(crate) fn secured(&self, now: Instant) {
        self.requests.lock().quiet = now;
    }

    pub(crate) fn recognise(&self) {
        if !self.known.swap(true, Ordering::Relaxed) {
            self.place.leave();
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
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

    /// A request is in flight until what this gives is dropped.
    pub(crate) fn begin(self: &Arc<Self>, version: Version) -> Flight {
        let mut requests = self.requests.lock();
        if requests.in_flight == 0 {
            requests.busy = Instant::now();
        }
        requests.in_flight += 1;
        requests.any = true;
        requests.http1 = version < Version::HTTP_2;
        requests.head = None;
        self.place.requests.fetch_add(1, Ordering::Relaxed);
        Flight { activity: self.clone(), answered: false }
    }

    /// What to do now. `period` is remembered from one call to the next.
    pub(crate) fn verdict(&self, limits: &Limits, period: &mut Option<Period>, now: Instant) -> Verdict {
        let requests = self.requests.lock().clone();
        let moved = self.moved.load(Ordering::Relaxed);
        requests.verdict(self.is_known(), moved, limits, period, now)
    }
}

impl Requests {
    fn verdict(
        &self,
        known: bool,
        moved: u64,
        limits: &Limits,
        period: &mut Option<Period>,
        now: Instant,
    ) -> Verdict {
        // Whatever happens meanwhile, its deadline is not before this.
        let next = now + limits.headers.min(limits.idle).min(limits.stall);
        match self.judge(known, moved, limits, period, now) {
            Verdict::Wait(until) => Verdict::Wait(until.min(next)),
            verdict => verdict,
        }
    }

    fn judge(
        &self,
        known: bool,
        moved: u64,
        limits: &Limits,
        period: &mut Option<Period>,
        now: Instant,
    ) -> Verdict {
        if self.in_flight == 0 {
            *period = None;
            return self.waiting(limits, now);
        }
        if known {
            return Verdict::Wait(now + limits.idle);
        }
        let current = match *period {
            Some(current) if current.began >= self.busy => current,
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

    /// Between requests, or before the first.
    fn waiting(&self, limits: &Limits, now: Instant) -> Verdict {
        if !self.any {
            let end = self.quiet + limits.headers;
            return if now < end { Verdict::Wait(end) } else { Verdict::Cut("no request came in time") };
        }
        // HTTP/2 has PINGs and the like between requests: there a byte begins nothing.
        let head = self.head.filter(|_| self.http1).map(|began| began + limits.headers);
        if head.is_some_and(|end| now >= end) {
            return Verdict::Cut("the headers of a request did not come in time");
        }
        let end = self.quiet + limits.idle;
        if now >= end {
            return Verdict::Idle;
        }
        Verdict::Wait(head.map_or(end, |head| end.min(head)))
    }
}

/// A request in flight, with its answer.
#[derive(Debug)]
pub(crate) struct Flight {
    activity: Arc<Activity>,
    pub(crate) answered: bool,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut requests = self.activity.requests.lock();
        requests.in_flight -= 1;
        requests.withdrawn += usize::from(!self.answered);
        if requests.withdrawn > WITHDRAWN && !self.activity.is_known() {
            self.activity.place.evicted.cancel();
        }
        if requests.in_flight == 0 {
            requests.quiet = Instant::now();
        }
        self.activity.place.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn requests(now: Instant) -> Requests {
        Requests { in_flight: 0, any: true, http1: false, quiet: now, busy: now, head: None, withdrawn: 0 }
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

    fn at(requests: &Requests, known: bool, now: Instant) -> Verdict {
        requests.verdict(known, 0, &limits(), &mut None, now)
    }

    #[test]
    fn the_first_request_comes_soon_and_the_next_may_take_longer() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let first = Requests { any: false, ..requests(start) };
        assert_eq!(at(&first, false, after(19)), Verdict::Wait(after(20)));
        assert!(matches!(at(&first, false, after(20)), Verdict::Cut(_)));
        let next = requests(start);
        assert_eq!(at(&next, false, after(20)), Verdict::Wait(after(40)), "looked at again");
        assert_eq!(at(&next, false, after(90)), Verdict::Wait(after(100)));
        assert_eq!(at(&next, true, after(100)), Verdict::Idle);
    }

    #[test]
    fn a_byte_begins_the_headers_in_http_1_only() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let begun = Requests { head: Some(after(50)), ..requests(start) };
        assert_eq!(at(&begun, true, after(80)), Verdict::Wait(after(100)), "a PING begins nothing");
        let begun = Requests { http1: true, ..begun };
        assert_eq!(at(&begun, true, after(60)), Verdict::Wait(after(70)));
        assert!(matches!(at(&begun, true, after(70)), Verdict::Cut(_)));
    }

    #[test]
    fn a_request_of_a_known_caller_may_take_for_ever_and_another_has_to_progress() {
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
        // Another request has its own time.
        let mut period = Some(Period { began: start, moved: 0 });
        let later = Requests { busy: after(29), ..busy };
        assert_eq!(later.verdict(false, 0, &limits(), &mut period, after(30)), Verdict::Wait(after(50)));
    }
}
