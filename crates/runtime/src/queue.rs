//! A keyed work queue: each key is at most once in the queue and at most once in work.
//!
//! Adding is never blocking and coalesces, so a slow consumer costs its producers nothing. A key added while
//! it is in work is handed out again after `done`. Retries back off per key.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// See the module's text. Cheap to clone; clones share the queue.
#[derive(Debug)]
pub struct WorkQueue<K> {
    inner: Arc<Inner<K>>,
}

#[derive(Debug)]
struct Inner<K> {
    state: Mutex<State<K>>,
    ready: Notify,
    /// Wakes the task in `next` that sleeps until the earliest delayed key.
    delayed: Notify,
}

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    working: HashSet<K>,
    /// Added while in work.
    again: HashSet<K>,
    later: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            working: HashSet::new(),
            again: HashSet::new(),
            later: HashMap::new(),
            failures: HashMap::new(),
        };
        Self {
            inner: Arc::new(Inner { state: Mutex::new(state), ready: Notify::new(), delayed: Notify::new() }),
        }
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// Makes `key` due now.
    pub fn add(&self, key: K) {
        let mut state = self.inner.state.lock();
        state.later.remove(&key);
        if state.enqueue(key) {
            self.inner.ready.notify_one();
        }
    }

    /// Makes `key` due after `delay`; the earlier of two delays counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let due = Instant::now() + delay;
        let mut state = self.inner.state.lock();
        if state.queued.contains(&key) || state.later.get(&key).is_some_and(|old| *old <= due) {
            return;
        }
        state.later.insert(key, due);
        self.inner.delayed.notify_one();
    }

    /// Makes `key` due after its back-off, which doubles with every call until [`forget`](Self::forget).
    pub fn retry(&self, key: K) -> Duration {
        let failures = {
            let mut state = self.inner.state.lock();
            let count = state.failures.entry(key.clone()).or_default();
            *count = count.saturating_add(1);
            *count
        };
        let delay = FIRST_RETRY.saturating_mul(1 << (failures - 1).min(16)).min(LAST_RETRY);
        self.add_after(key, delay);
        delay
    }

    /// Ends the back-off of `key`.
    pub fn forget(&self, key: &K) {
        self.inner.state.lock().failures.remove(key);
    }

    /// The next due key; it belongs to the caller until [`done`](Self::done). Safe to cancel.
    pub async fn next(&self) -> K {
        loop {
            let sleep_until = {
                let mut state = self.inner.state.lock();
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.working.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.inner.ready.notify_one();
                    }
                    if !state.later.is_empty() {
                        // This consumer stops watching the clock: another one must.
                        self.inner.delayed.notify_one();
                    }
                    return key;
                }
                state.later.values().min().copied()
            };
            let sleep = async {
                match sleep_until {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.inner.ready.notified() => {}
                () = self.inner.delayed.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// Gives `key` back; if it was added meanwhile, it is due again.
    pub fn done(&self, key: &K) {
        let mut state = self.inner.state.lock();
        state.working.remove(key);
        if state.again.remove(key) && state.enqueue(key.clone()) {
            self.inner.ready.notify_one();
        }
    }

    /// Keys that are queued or in work; delayed ones do not count.
    pub fn busy(&self) -> usize {
        let state = self.inner.state.lock();
        state.queued.len() + state.working.len()
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn enqueue(&mut self, key: K) -> bool {
        if self.working.contains(&key) {
            self.again.insert(key);
            return false;
        }
        if !self.queued.insert(key.clone()) {
            return false;
        }
        self.ready.push_back(key);
        true
    }

    fn promote(&mut self, now: Instant) {
        if self.later.is_empty() {
            return;
        }
        let mut due: Vec<(Instant, K)> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(k, at)| (*at, k.clone())).collect();
        due.sort_by_key(|(at, _)| *at);
        for (_, key) in due {
            self.later.remove(&key);
            self.enqueue(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_coalesced_and_never_worked_on_twice_at_once() {
        let queue = WorkQueue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(queue.next().await, "b");
        assert!(
            tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(),
            "a is still in work"
        );
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_delays_counts_and_an_add_overtakes_both() {
        let queue = WorkQueue::default();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(60));
        assert_eq!(queue.next().await, "a");
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        queue.done(&"a");
        queue.add_after("a", Duration::from_secs(10));
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert!(
            tokio::time::timeout(Duration::from_secs(60), queue.next()).await.is_err(),
            "the delay is gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn retries_double_up_to_a_minute_until_forgotten() {
        let queue = WorkQueue::default();
        let mut delays = vec![];
        for _ in 0..13 {
            delays.push(queue.retry("a"));
            queue.next().await;
            queue.done(&"a");
        }
        assert_eq!(delays[..3], [50, 100, 200].map(Duration::from_millis));
        assert_eq!(delays[12], Duration::from_secs(60));
        queue.forget(&"a");
        assert_eq!(queue.retry("a"), FIRST_RETRY);
    }

    #[tokio::test]
    async fn a_cancelled_consumer_loses_no_key() {
        let queue = WorkQueue::default();
        for _ in 0..3 {
            let waiting = tokio::time::timeout(Duration::from_millis(1), queue.next()).await;
            assert!(waiting.is_err());
        }
        queue.add("a");
        assert_eq!(queue.next().await, "a");
    }
}
