//! The store without a disk: no thread, no waiting, so it also works in virtual time.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::stage::Stage;
use super::{Index, Retention, Storage, StorageError, Version, Write};
use crate::clock::{Clock, SystemClock};

/// Keeps everything in memory and loses it with the process.
pub struct MemoryStorage {
    index: Index,
    writer: Mutex<()>,
    clock: Arc<dyn Clock>,
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::with(Arc::new(SystemClock), Retention::default())
    }

    /// An empty store with its own clock and history bounds.
    pub fn with(clock: Arc<dyn Clock>, retention: Retention) -> Self {
        Self { index: Index::new(retention), writer: Mutex::new(()), clock }
    }

    fn write_now(&self, write: &Write) -> Result<Arc<Version>, StorageError> {
        let _one_at_a_time = self.writer.lock();
        let now = self.clock.now();
        let mut stage = Stage::new(&self.index);
        let event = stage.judge(write, now)?;
        stage.publish();
        if let Some(revision) = self.index.compaction_due(now) {
            self.index.forget(revision);
        }
        Ok(event.version.clone())
    }
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl Storage for MemoryStorage {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>> {
        Box::pin(async move { self.write_now(&write) })
    }

    fn index(&self) -> &Index {
        &self.index
    }

    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.index.forget(revision);
            Ok(())
        })
    }
}
