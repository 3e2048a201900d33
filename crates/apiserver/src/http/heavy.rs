//! Work that takes a processor for long: done on threads of its own, a few at a time, so that the threads that serve
//! everyone stay free. Afterwards freed memory is returned to the system.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::memory::{self, Trim};
use crate::status::Status;

/// Bodies, stored objects and answers above this are heavy. Below it, a request takes less than a millisecond or two.
pub(super) const HEAVY_FROM: usize = 32 << 10;
/// A selector above this is compared with every object for long.
pub(super) const LONG_QUERY: usize = 2 << 10;

/// How many heavy requests run at the same time; each may take some hundred MiB for a moment.
const AT_ONCE: usize = 4;

/// The places for heavy work.
#[derive(Clone)]
pub(super) struct Heavy {
    places: Arc<Semaphore>,
    trim: Trim,
}

impl Default for Heavy {
    fn default() -> Self {
        memory::keep_large_pieces_apart();
        Self { places: Arc::new(Semaphore::new(AT_ONCE)), trim: Trim::default() }
    }
}

impl Heavy {
    /// Runs a future to its end on a thread that serves nobody else.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let closed = |_| Status::internal("the server stops");
        let place = self.places.clone().acquire_owned().await.map_err(closed)?;
        let runtime = tokio::runtime::Handle::current();
        let done = tokio::task::spawn_blocking(move || {
            let done = runtime.block_on(work);
            drop(place);
            done
        });
        let done = done.await;
        self.trim.soon();
        match done {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Status::internal("the server stops")),
            },
        }
    }
}

/// Whether a small patch may make a large object: only `copy` of a JSON patch does, which an escape can hide.
pub(super) fn may_multiply(patch: &[u8]) -> bool {
    patch.windows(4).any(|word| word == b"copy" || word.starts_with(b"\\u"))
}
