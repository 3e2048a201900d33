//! Waiting for an object to appear in a cache, without asking again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drover_runtime::ObjectKey;
use drover_runtime::cache::{Cache, Cached};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A change that was missed costs this much, and no more.
const SAFETY: Duration = Duration::from_secs(1);

/// Who waits for which key. Clones share it. Only those who wait for a key are woken by its change: a cache may change
/// thousands of times while hundreds of machines wait for their own objects.
#[derive(Clone, Default)]
pub struct Waiters {
    by_key: Arc<Mutex<HashMap<ObjectKey, Waiting>>>,
}

#[derive(Default)]
struct Waiting {
    count: usize,
    changed: Arc<Notify>,
}

impl Waiters {
    /// Every change in `cache` wakes those who wait for its key.
    pub fn follow<K: Cached>(&self, cache: &Cache<K>) {
        let waiters = self.clone();
        cache.subscribe(move |change| {
            if let Some(waiting) = waiters.by_key.lock().get(change.key) {
                waiting.changed.notify_waiters();
            }
        });
    }

    /// Waits until `look` finds something; a change of `key` is a reason to look. None after the deadline.
    pub async fn wait<T>(
        &self,
        key: &ObjectKey,
        deadline: Instant,
        look: impl Fn() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = look() {
            return Some(found);
        }
        let place = Place::take(self, key);
        loop {
            let mut changed = std::pin::pin!(place.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(found) = look() {
                return Some(found);
            }
            let now = Instant::now();
            if now >= deadline {
                return None;
            }
            // Looked at again after either.
            let _ = tokio::time::timeout_at(deadline.min(now + SAFETY), changed).await;
        }
    }
}

/// A place among those who wait; given back when it is dropped, also when the caller has gone.
struct Place<'a> {
    waiters: &'a Waiters,
    key: &'a ObjectKey,
    changed: Arc<Notify>,
}

impl<'a> Place<'a> {
    fn take(waiters: &'a Waiters, key: &'a ObjectKey) -> Self {
        let mut by_key = waiters.by_key.lock();
        let waiting = by_key.entry(key.clone()).or_default();
        waiting.count += 1;
        Self { waiters, key, changed: waiting.changed.clone() }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut by_key = self.waiters.by_key.lock();
        if let Some(waiting) = by_key.get_mut(self.key) {
            waiting.count -= 1;
            if waiting.count == 0 {
                by_key.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn whoever_waits_is_woken_and_leaves_nothing() {
        let waiters = Waiters::default();
        let (key, there) = (ObjectKey::new("a", "b"), Arc::new(AtomicBool::new(false)));
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(waiters.wait(&key, soon, || None::<()>).await, None);
        let task = tokio::spawn({
            let (waiters, key, there) = (waiters.clone(), key.clone(), there.clone());
            async move {
                let deadline = Instant::now() + Duration::from_secs(60);
                waiters.wait(&key, deadline, || there.load(Ordering::SeqCst).then_some(())).await
            }
        });
        while !waiters.by_key.lock().contains_key(&key) {
            tokio::task::yield_now().await;
        }
        there.store(true, Ordering::SeqCst);
        waiters.by_key.lock()[&key].changed.notify_waiters();
        assert_eq!(task.await.unwrap(), Some(()));
        assert!(waiters.by_key.lock().is_empty());
    }
}
