//! Writes that can wait a moment: a status of which only what it reports to people changed.
//!
//! While a cluster is created, the messages of its conditions change many times a second, and each write wakes every
//! controller that watches the object. Such a change is written when it has stood for [`QUIET`], or has been put off for
//! [`LONGEST`]; a change of anything that others act upon is written at once, and takes the rest along. The first status
//! of an object waits for [`FIRST`]: what follows its creation follows at once. The pass that deferred a write is repeated
//! when the write is due, so the last state is always stored.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a report must stay the same before it is written.
pub const QUIET: Duration = Duration::from_secs(2);
/// How long a report that keeps changing is put off.
pub const LONGEST: Duration = Duration::from_secs(10);
/// How long the first status of an object is put off, unless its writer says otherwise.
pub const FIRST: Duration = Duration::from_millis(200);

tokio::task_local! {
    /// When the running pass must be repeated because it deferred a write.
    static DEFERRED: Cell<Option<Duration>>;
}

/// Runs one pass of a controller; also returns after which time it must be repeated because it deferred a write.
pub(crate) async fn pass<F: Future>(pass: F) -> (F::Output, Option<Duration>) {
    DEFERRED
        .scope(Cell::new(None), async {
            let output = pass.await;
            (output, DEFERRED.with(Cell::get))
        })
        .await
}

/// The deferred writes of one writer. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Pace {
    deferred: Arc<Mutex<HashMap<String, Deferred>>>,
}

struct Deferred {
    /// When the first of these changes was seen.
    since: Instant,
    /// When the last one was.
    changed: Instant,
    /// What is to be written.
    wanted: u64,
}

impl Pace {
    /// Forgets the object with this uid: it was written, or needs no write any more.
    pub(crate) fn forget(&self, uid: &str) {
        self.deferred.lock().remove(uid);
    }

    /// Defers a write of the object with this uid, unless it is due; `wanted` is a hash of what it would write. Outside of
    /// a controller's pass nothing would repeat it, so nothing is deferred.
    pub(crate) fn defer(&self, uid: &str, wanted: u64) -> bool {
        self.put_off(uid, wanted, |deferred| (deferred.changed + QUIET).min(deferred.since + LONGEST))
    }

    /// Defers the first write of the object with this uid for `delay`, unless it is due.
    pub(crate) fn defer_first(&self, uid: &str, delay: Duration) -> bool {
        self.put_off(uid, 0, |deferred| deferred.since + delay)
    }

    fn put_off(&self, uid: &str, wanted: u64, due: impl Fn(&Deferred) -> Instant) -> bool {
        let now = Instant::now();
        let due = {
            let mut all = self.deferred.lock();
            if all.len() == all.capacity() {
                // Objects that were deleted meanwhile.
                all.retain(|_, deferred| now.duration_since(deferred.since) < 2 * LONGEST);
            }
            let entry = all.entry(uid.to_owned()).or_insert(Deferred { since: now, changed: now, wanted });
            if entry.wanted != wanted {
                (entry.changed, entry.wanted) = (now, wanted);
            }
            due(entry)
        };
        let rest = due.saturating_duration_since(now);
        let sooner = |deferred: &Cell<Option<Duration>>| {
            deferred.set(Some(deferred.get().map_or(rest, |other| other.min(rest))));
        };
        !rest.is_zero() && DEFERRED.try_with(sooner).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_report_is_written_once_it_is_quiet() {
        let pace = Pace::default();
        assert!(!pace.defer("a", 1), "outside of a pass nothing would repeat it");
        pace.forget("a");
        assert_eq!(pass(async { pace.defer("a", 1) }).await, (true, Some(QUIET)));
        tokio::time::advance(QUIET / 4).await;
        assert_eq!(
            pass(async { (pace.defer("a", 1), pace.defer("b", 1)) }).await,
            ((true, true), Some(QUIET * 3 / 4))
        );
        // Another change starts the time again.
        assert_eq!(pass(async { pace.defer("a", 2) }).await, (true, Some(QUIET)));
        tokio::time::advance(QUIET).await;
        assert_eq!(pass(async { pace.defer("a", 2) }).await, (false, None));
        pace.forget("a");
        assert_eq!(pass(async { pace.defer("a", 2) }).await, (true, Some(QUIET)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_status_waits_a_moment() {
        let pace = Pace::default();
        assert_eq!(pass(async { pace.defer_first("a", FIRST) }).await, (true, Some(FIRST)));
        tokio::time::advance(FIRST / 2).await;
        assert_eq!(pass(async { pace.defer_first("a", FIRST) }).await, (true, Some(FIRST / 2)));
        tokio::time::advance(FIRST / 2).await;
        assert_eq!(pass(async { pace.defer_first("a", FIRST) }).await, (false, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_never_settles_is_written_all_the_same() {
        let pace = Pace::default();
        let begun = Instant::now();
        for wanted in 0.. {
            if !pass(async { pace.defer("a", wanted) }).await.0 {
                break;
            }
            tokio::time::advance(QUIET / 2).await;
        }
        assert_eq!(begun.elapsed(), LONGEST);
    }
}
