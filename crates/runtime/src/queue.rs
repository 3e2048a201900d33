//! A work queue by key: each key is queued at most once and processed at most once at a time.
//!
//! Adding never blocks and coalesces, so that a slow consumer does not affect producers. A key that is added while it
//! is processed is returned again after `done`. Retries back off per key.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::QueueMetrics;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// The queue. Clones share it.
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
    /// In order, with the time of entry.
    ready: VecDeque<(K, Instant)>,
    queued: HashSet<K>,
    /// Keys that are being processed, with the start time.
    working: HashMap<K, Instant>,
    /// Keys that were added while being processed.
    again: HashSet<K>,
    later: Delays<K>,
    failures: HashMap<K, u32>,
    metrics: Option<QueueMetrics>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            working: HashMap::new(),
            again: HashSet::new(),
            later: Delays::default(),
            failures: HashMap::new(),
            metrics: None,
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
        if !state.queued.contains(&key) && state.later.insert(key, due) {
            self.inner.delayed.notify_one();
        }
    }

    /// Makes `key` due after its back-off, which doubles with every call until [`forget`](Self::forget).
    pub fn retry(&self, key: K) -> Duration {
        let failures = {
            let mut state = self.inner.state.lock();
            if let Some(metrics) = &state.metrics {
                metrics.retries.inc();
            }
            let count = state.failures.entry(key.clone()).or_default();
            *count = count.saturating_add(1);
            *count
        };
        let delay = FIRST_RETRY.saturating_mul(1 << (failures - 1).min(16)).min(LAST_RETRY);
        self.add_after(key, delay);
        delay
    }

    /// Resets the back-off of `key`.
    pub fn forget(&self, key: &K) {
        self.inner.state.lock().failures.remove(key);
    }

    /// The next due key, which the caller must return with [`done`](Self::done). Cancel-safe.
    pub async fn next(&self) -> K {
        loop {
            let sleep_until = {
                let now = Instant::now();
                let mut state = self.inner.state.lock();
                state.promote(now);
                if let Some(key) = state.take(now) {
                    if !state.ready.is_empty() {
                        self.inner.ready.notify_one();
                    }
                    if state.later.earliest().is_some() {
                        // This consumer stops waiting for the timer, so another one must.
                        self.inner.delayed.notify_one();
                    }
                    return key;
                }
                state.later.earliest()
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

    /// Returns `key`; if it was added in the meantime, it is due again.
    pub fn done(&self, key: &K) {
        let mut state = self.inner.state.lock();
        let since = state.working.remove(key);
        if let (Some(since), Some(metrics)) = (since, &state.metrics) {
            metrics.worked.observe(since.elapsed().as_secs_f64());
        }
        if state.again.remove(key) && state.enqueue(key.clone()) {
            self.inner.ready.notify_one();
        }
    }

    /// Keys that are queued or being processed, without delayed ones.
    pub fn busy(&self) -> usize {
        let state = self.inner.state.lock();
        state.queued.len() + state.working.len()
    }

    /// Enables metrics, unless they are enabled already.
    pub(crate) fn measure(&self, metrics: impl FnOnce() -> QueueMetrics) {
        let mut state = self.inner.state.lock();
        if state.metrics.is_none() {
            let metrics = metrics();
            metrics.depth.inc_by(i64::try_from(state.ready.len()).unwrap_or(i64::MAX));
            state.metrics = Some(metrics);
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn enqueue(&mut self, key: K) -> bool {
        if self.working.contains_key(&key) {
            self.again.insert(key);
            return false;
        }
        if !self.queued.insert(key.clone()) {
            return false;
        }
        self.ready.push_back((key, Instant::now()));
        if let Some(metrics) = &self.metrics {
            metrics.adds.inc();
            metrics.depth.inc();
        }
        true
    }

    fn take(&mut self, now: Instant) -> Option<K> {
        let (key, since) = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.working.insert(key.clone(), now);
        if let Some(metrics) = &self.metrics {
            metrics.depth.dec();
            metrics.waited.observe(now.duration_since(since).as_secs_f64());
        }
        Some(key)
    }

    fn promote(&mut self, now: Instant) {
        while let Some(key) = self.later.pop(now) {
            self.enqueue(key);
        }
    }
}

impl<K> Drop for State<K> {
    fn drop(&mut self) {
        // Another queue with the same name may still be counted.
        if let Some(metrics) = &self.metrics {
            metrics.depth.dec_by(i64::try_from(self.ready.len()).unwrap_or(i64::MAX));
        }
    }
}

/// Keys by the time at which they are due; every operation takes at most O(log n).
#[derive(Debug)]
struct Delays<K> {
    /// With a number that distinguishes keys with the same time and keeps their order.
    by_time: BTreeMap<(Instant, u64), K>,
    by_key: HashMap<K, (Instant, u64)>,
    next: u64,
}

impl<K> Default for Delays<K> {
    fn default() -> Self {
        Self { by_time: BTreeMap::new(), by_key: HashMap::new(), next: 0 }
    }
}

impl<K: Clone + Eq + Hash> Delays<K> {
    /// `false` if the key is already due at that time or earlier.
    fn insert(&mut self, key: K, due: Instant) -> bool {
        if self.by_key.get(&key).is_some_and(|(known, _)| *known <= due) {
            return false;
        }
        self.remove(&key);
        self.next += 1;
        self.by_time.insert((due, self.next), key.clone());
        self.by_key.insert(key, (due, self.next));
        true
    }

    fn remove(&mut self, key: &K) {
        if let Some(place) = self.by_key.remove(key) {
            self.by_time.remove(&place);
        }
    }

    fn earliest(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((due, _), _)| *due)
    }

    /// The first key, if it is due.
    fn pop(&mut self, now: Instant) -> Option<K> {
        let first = self.by_time.first_entry().filter(|first| first.key().0 <= now)?;
        let key = first.remove();
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_coalesced_and_never_processed_twice_at_once() {
        let queue = WorkQueue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(queue.next().await, "b");
        assert!(
            tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(),
            "a is still being processed"
        );
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_delays_is_used_and_an_add_overrides_both() {
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
            "the delay was removed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn retries_double_up_to_a_minute_until_the_back_off_is_reset() {
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

    #[tokio::test(start_paused = true)]
    async fn delayed_keys_are_returned_in_the_order_of_their_times_and_are_removed() {
        let queue = WorkQueue::default();
        // Neither in the order of the keys nor of the times.
        for key in 0..1000_u64 {
            queue.add_after(key, Duration::from_millis(1 + key * 7919 % 1000));
        }
        queue.add_after(3, Duration::from_secs(3600));
        let start = Instant::now();
        for at in 1..=1000_u128 {
            let key = queue.next().await;
            assert_eq!((start.elapsed().as_millis(), 1 + u128::from(key) * 7919 % 1000), (at, at));
            queue.done(&key);
        }
        let state = queue.inner.state.lock();
        assert!(state.later.by_key.is_empty() && state.later.by_time.is_empty());
        assert!(state.queued.is_empty() && state.working.is_empty() && state.again.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_counted() {
        let metrics = crate::Metrics::default();
        let (queue, seen) = (WorkQueue::default(), metrics.queue("test"));
        queue.add("before");
        queue.measure(|| metrics.queue("test"));
        queue.add("a");
        queue.add("a");
        queue.add_after("b", Duration::from_secs(1));
        assert_eq!((seen.depth.get(), seen.adds.get()), (2, 1));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!((queue.next().await, queue.next().await), ("before", "a"));
        queue.add("a");
        tokio::time::advance(Duration::from_secs(2)).await;
        queue.done(&"a");
        queue.retry("before");
        assert_eq!((seen.depth.get(), seen.adds.get(), seen.retries.get()), (2, 3, 1), "a again, and b");
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "workqueue_queue_duration_seconds_sum{name=\"test\"} 8.0\n",
            "workqueue_queue_duration_seconds_count{name=\"test\"} 2\n",
            "workqueue_work_duration_seconds_sum{name=\"test\"} 2.0\n",
            "workqueue_work_duration_seconds_count{name=\"test\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let other = WorkQueue::default();
        other.measure(|| metrics.queue("test"));
        other.add("c");
        assert_eq!(seen.depth.get(), 3);
        drop(queue);
        assert_eq!(seen.depth.get(), 1, "keys of a dropped queue are not counted");
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
