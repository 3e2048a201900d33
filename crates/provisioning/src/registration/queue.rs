//! New machines are made a few at a time: all at once would take longer, and delay everything else that the server answers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// New machines of one cluster that are made at once; others wait.
const AT_ONCE: usize = 8;

/// One queue per cluster: a cluster whose machines cannot be made delays no other. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Queues {
    by_cluster: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl Queues {
    /// Waits for a place among the machines of a management cluster; none after the deadline.
    pub(super) async fn enter(&self, management: &str, deadline: Instant) -> Option<OwnedSemaphorePermit> {
        let queue = self.of(management).acquire_owned();
        tokio::time::timeout_at(deadline, queue).await.ok()?.ok()
    }

    /// A queue is forgotten when nothing waits in it or holds a place.
    fn of(&self, management: &str) -> Arc<Semaphore> {
        let mut queues = self.by_cluster.lock();
        if let Some(queue) = queues.get(management).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Semaphore::new(AT_ONCE));
        queues.insert(management.to_owned(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_whose_queue_is_full_delays_no_other() {
        let (queues, now) = (Queues::default(), Instant::now);
        let mut places = Vec::new();
        for _ in 0..AT_ONCE {
            places.push(queues.enter("stuck", now()).await.unwrap());
        }
        assert!(queues.enter("stuck", now()).await.is_none());
        let other = queues.enter("other", now()).await.unwrap();
        places.pop();
        assert!(queues.enter("stuck", now()).await.is_some());
        drop((places, other));
        drop(queues.enter("third", now()).await);
        assert_eq!(queues.by_cluster.lock().len(), 1, "queues that are empty are forgotten");
    }
}
