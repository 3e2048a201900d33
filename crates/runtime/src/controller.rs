//! The loop around a reconciler: keys come from caches, one pass per key at a time, and failures back off.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::{Cache, Cached, Change};
use crate::metrics::ControllerMetrics;
use crate::queue::WorkQueue;
use crate::{Error, ObjectKey, pace};

/// What to do after a successful pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next(Option<Duration>);

impl Next {
    /// Wait for a change of an object.
    pub const EVENT: Self = Self(None);

    /// Repeat after `delay` at the latest: for deadlines, and for changes without events.
    pub fn after(delay: Duration) -> Self {
        Self(Some(delay))
    }

    pub fn delay(self) -> Option<Duration> {
        self.0
    }

    /// The earlier of two.
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }
}

/// One controller's logic.
pub trait Reconciler: Send + Sync + 'static {
    /// The name in logs and events, such as `machineset`.
    const NAME: &'static str;

    /// One pass for one object: it reads caches, decides and writes. It may be cancelled at any `.await`, and the
    /// object may have been deleted. Passes run concurrently for different keys, never for the same key.
    fn reconcile(&self, key: ObjectKey) -> impl Future<Output = Result<Next, Error>> + Send;
}

/// Feeds a [`Reconciler`] from caches.
pub struct Controller<R> {
    reconciler: Arc<R>,
    queue: WorkQueue<ObjectKey>,
    concurrency: usize,
    metrics: Option<ControllerMetrics>,
}

impl<R: Reconciler> Controller<R> {
    pub fn new(reconciler: R) -> Self {
        let queue = WorkQueue::default();
        Self { reconciler: Arc::new(reconciler), queue, concurrency: 16, metrics: None }
    }

    /// How many passes can run concurrently.
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.concurrency = limit.max(1);
        self
    }

    /// Every change in `cache` queues the same key.
    pub fn reconciles<K: Cached>(self, cache: &Cache<K>) -> Self {
        self.watches(cache, |change| vec![change.key.clone()])
    }

    /// Every change in `cache` queues the keys that `map` returns. Queue and passes are counted in the metrics of the
    /// first such cache.
    pub fn watches<K, I>(
        mut self,
        cache: &Cache<K>,
        map: impl Fn(&Change<'_, K>) -> I + Send + Sync + 'static,
    ) -> Self
    where
        K: Cached,
        I: IntoIterator<Item = ObjectKey>,
    {
        if let Some(metrics) = cache.metrics() {
            self.queue.measure(|| metrics.queue(R::NAME));
            self.metrics.get_or_insert_with(|| metrics.controller(R::NAME));
        }
        let queue = self.queue.clone();
        cache.subscribe(move |change| map(change).into_iter().for_each(|key| queue.add(key)));
        self
    }

    /// The queue, for keys from other sources than caches.
    pub fn queue(&self) -> WorkQueue<ObjectKey> {
        self.queue.clone()
    }

    /// Runs until `stop`; running passes are completed.
    ///
    /// A pass that panics counts as failed and affects only its object.
    pub async fn run(self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(self.concurrency));
        let passes = TaskTracker::new();
        if let Some(metrics) = &self.metrics {
            metrics.limit.inc_by(i64::try_from(self.concurrency).unwrap_or(i64::MAX));
        }
        loop {
            let (permit, key) = tokio::select! {
                () = stop.cancelled() => break,
                next = async {
                    // The semaphore is never closed, so acquiring succeeds.
                    let permit = permits.clone().acquire_owned().await;
                    (permit, self.queue.next().await)
                } => next,
            };
            let (reconciler, queue, metrics) =
                (self.reconciler.clone(), self.queue.clone(), self.metrics.clone());
            passes.spawn(async move {
                let _permit = permit;
                metrics.iter().for_each(|metrics| _ = metrics.active.inc());
                // In a task of its own, which contains a panic.
                let pass = {
                    let key = key.clone();
                    tokio::spawn(pace::pass(async move { reconciler.reconcile(key).await }))
                };
                let outcome = pass.await;
                if let Some(metrics) = &metrics {
                    metrics.active.dec();
                    count(metrics, &outcome);
                }
                match outcome {
                    Ok((Ok(next), deferred)) => {
                        queue.forget(&key);
                        if let Some(delay) = next.min(Next(deferred)).0 {
                            queue.add_after(key.clone(), delay);
                        }
                    }
                    Ok((Err(error), _)) => {
                        let delay = queue.retry(key.clone());
                        if error.is_conflict() {
                            tracing::debug!(controller = R::NAME, %key, error = error.chain(), "looking again");
                        } else {
                            tracing::warn!(controller = R::NAME, %key, ?delay, error = error.chain(), "failed");
                        }
                    }
                    // The program ends, and its tasks with it.
                    Err(ended) if ended.is_cancelled() => {}
                    Err(panicked) => {
                        let delay = queue.retry(key.clone());
                        tracing::error!(controller = R::NAME, %key, ?delay, error = %panicked, "panicked");
                    }
                }
                queue.done(&key);
            });
        }
        passes.close();
        passes.wait().await;
    }
}

fn count(metrics: &ControllerMetrics, outcome: &Result<(Result<Next, Error>, Option<Duration>), JoinError>) {
    match outcome {
        Ok((Ok(next), deferred)) if next.0.or(*deferred).is_some() => metrics.requeue_after.inc(),
        Ok((Ok(_), _)) => metrics.success.inc(),
        Ok((Err(error), _)) if error.is_conflict() => metrics.requeue.inc(),
        Err(ended) if ended.is_cancelled() => 0,
        failed => {
            if failed.is_err() {
                metrics.panics.inc();
            }
            metrics.errors.inc();
            metrics.error.inc()
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    struct Scripted {
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Reconciler for Scripted {
        const NAME: &'static str = "scripted";

        async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
            let times = {
                let mut log = self.log.lock();
                log.push(key.name.clone());
                log.iter().filter(|name| **name == key.name).count()
            };
            match (key.name.as_str(), times) {
                ("panics", 1) => panic!("on purpose"),
                ("fails", 1 | 2) => Err(Error::Invalid("on purpose".into())),
                ("waits", 1) => Ok(Next::after(Duration::from_secs(30))),
                _ => Ok(Next::EVENT),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_panics_and_delays_are_repeated_and_successes_are_not() {
        let log = Arc::new(Mutex::new(vec![]));
        let controller = Controller::new(Scripted { log: log.clone() });
        let queue = controller.queue();
        for name in ["panics", "fails", "waits", "works"] {
            queue.add(ObjectKey::cluster(name));
        }
        let stop = CancellationToken::new();
        let running = tokio::spawn(controller.run(stop.clone()));
        tokio::time::sleep(Duration::from_secs(120)).await;
        stop.cancel();
        running.await.unwrap();
        let count = |name: &str| log.lock().iter().filter(|n| *n == name).count();
        assert_eq!((count("panics"), count("fails"), count("waits"), count("works")), (2, 3, 2, 1));
    }
}
