//! CPU-intensive requests run on separate threads, a few at a time, so that the threads that serve other requests stay
//! available. Afterwards freed memory is returned to the system.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::memory::{self, Trim};
use crate::status::Status;

/// Bodies, stored objects and responses above this size are heavy. Smaller ones take at most a millisecond or two.
pub(super) const HEAVY_FROM: usize = 32 << 10;
/// A longer selector takes long to match against every object.
pub(super) const LONG_QUERY: usize = 2 << 10;

/// How many heavy requests run at the same time; each may briefly need some hundred MiB.
const MAX_CONCURRENT: usize = 4;

/// Permits for heavy requests.
#[derive(Clone)]
pub(super) struct Heavy {
    permits: Arc<Semaphore>,
    trim: Trim,
}

impl Default for Heavy {
    fn default() -> Self {
        memory::map_large_allocations();
        Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT)), trim: Trim::default() }
    }
}

impl Heavy {
    /// Runs a future to completion on a separate thread.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let closed = |_| Status::internal("the server is shutting down");
        let permit = self.permits.clone().acquire_owned().await.map_err(closed)?;
        let runtime = tokio::runtime::Handle::current();
        let done = tokio::task::spawn_blocking(move || {
            let done = runtime.block_on(work);
            drop(permit);
            done
        });
        let done = done.await;
        self.trim.schedule();
        match done {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Status::internal("the server is shutting down")),
            },
        }
    }
}

/// Whether a small patch may produce a large object: only `copy` of a JSON patch can, and an escape can hide it.
pub(super) fn may_amplify(patch: &[u8]) -> bool {
    patch.windows(4).any(|word| word == b"copy" || word.starts_with(b"\\u"))
}
