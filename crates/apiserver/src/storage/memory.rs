//! The in-memory store: no thread and no waiting, so it also works in virtual time. With a journal, it survives a
//! restart.

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::journal::Journal;
use super::stage::Stage;
use super::{Index, Retention, Storage, StorageError, Version, Write};
use crate::clock::{Clock, SystemClock};

/// Keeps everything in memory. Without a journal, the content is lost with the process.
pub struct MemoryStorage {
    index: Index,
    writer: Mutex<Journaling>,
    clock: Arc<dyn Clock>,
}

enum Journaling {
    None,
    To(Journal),
    Closed,
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::with(Arc::new(SystemClock), Retention::default())
    }

    /// An empty store with its own clock and history limits.
    pub fn with(clock: Arc<dyn Clock>, retention: Retention) -> Self {
        Self { index: Index::new(retention), writer: Mutex::new(Journaling::None), clock }
    }

    /// A store that loads a file and appends every write to it, without waiting for the disk.
    pub fn journaled(path: &Path, retention: Retention) -> Result<Self, StorageError> {
        let store = Self::with(Arc::new(SystemClock), retention);
        *store.writer.lock() = Journaling::To(Journal::open(path, &store.index)?);
        Ok(store)
    }

    fn write_now(&self, write: &Write) -> Result<Arc<Version>, StorageError> {
        // Writes are serialized.
        let mut journal = self.writer.lock();
        let now = self.clock.now();
        let mut stage = Stage::new(&self.index);
        let event = stage.judge(write, now)?;
        match &mut *journal {
            Journaling::None => {}
            Journaling::To(journal) => journal.append(&event)?,
            Journaling::Closed => return Err(StorageError::Closed),
        }
        stage.publish();
        if let Journaling::To(journal) = &mut *journal {
            journal.settle(&self.index);
        }
        if let Some(revision) = self.index.compaction_due(now) {
            self.index.forget(revision);
        }
        self.index.shrink();
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

    fn close(&self) {
        let mut journal = self.writer.lock();
        if let Journaling::To(_) = *journal {
            *journal = Journaling::Closed;
        }
    }

    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            self.index.forget(revision);
            Ok(())
        })
    }
}
