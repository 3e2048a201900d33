//! The store: one global revision, compare-and-swap writes, and committed state in memory.
//!
//! A backend only decides how a write becomes durable; everything that is read (objects, lists at a
//! revision, the event log) comes from the shared [`Index`], which holds committed state only. Read
//! `index.rs` first, then `memory.rs`, then `sqlite/`.

mod index;
mod journal;
mod memory;
mod sqlite;
mod stage;
mod version;

#[cfg(test)]
mod contract_tests;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

pub use index::{Batch, Event, EventKind, Index, Page, Range, Retention, Tail};
pub use memory::MemoryStorage;
pub use sqlite::{CommitFault, SqliteOptions, SqliteStorage};
pub use version::{Key, Meta, OwnerRef, Version};

/// Why a write or read did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    /// The expectation of the write does not hold; carries what is there.
    #[error("the stored version differs from the expected one")]
    Conflict {
        /// What is stored now (as of the commit that made the judgement true).
        current: Option<Arc<Version>>,
    },
    /// History no longer covers the revision.
    #[error("revision {asked} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// Revision asked for.
        asked: u64,
        /// Oldest revision that can be read.
        oldest: u64,
    },
    /// The revision lies in the future.
    #[error("revision {asked} is not reached yet, the current is {current}")]
    Future {
        /// Revision asked for.
        asked: u64,
        /// Current revision.
        current: u64,
    },
    /// No space; nothing was stored.
    #[error("no space left for the store: {0}")]
    Full(Arc<str>),
    /// The backend failed; nothing was stored.
    #[error("the store failed: {0}")]
    Backend(Arc<str>),
    /// Another process holds the data directory.
    #[error("the store in {0} is in use by another server; stop it or choose another directory")]
    InUse(Arc<str>),
    /// The file was written by a newer release.
    #[error(
        "the store in {path} has schema version {found}, this program knows up to {known}; use the newer release"
    )]
    NewerSchema {
        /// The file.
        path: Arc<str>,
        /// Version in the file.
        found: i64,
        /// Version known here.
        known: i64,
    },
    /// What lies there is no store, or not a whole one.
    #[error("the store {path} is damaged ({why}) and was left as it is")]
    Damaged {
        /// The file.
        path: Arc<str>,
        /// How it shows.
        why: Arc<str>,
    },
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No object.
    Absent,
    /// The object at exactly this revision.
    Revision(u64),
}

/// One change of one key.
#[derive(Clone, Debug)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// What must be there.
    pub expect: Expect,
    /// What to do.
    pub change: Change,
}

/// What a [`Write`] does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Store this object.
    Put(Encoded),
    /// Remove the object. The event carries `last`, or the stored object when that is `None`; either way
    /// with the revision of the removal.
    Delete {
        /// Final state to show to watchers.
        last: Option<Encoded>,
    },
}

/// An object encoded as JSON, with a hole where the writer puts the digits of `resourceVersion`.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// JSON in which `resourceVersion` is the empty string.
    pub json: Bytes,
    /// Where the digits go (just after the opening quote).
    pub hole: u32,
}

/// A store.
pub trait Storage: Send + Sync + 'static {
    /// Judges the write against everything written before it and makes it durable. When this returns `Ok`
    /// the write is durable and visible to every reader; when it returns an error it left no trace.
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>>;

    /// Committed state and history.
    fn index(&self) -> &Index;

    /// Whether the backend can still write.
    fn health(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Bytes that it takes where it is kept.
    fn size(&self) -> u64 {
        let (objects, history) = self.index().bytes();
        (objects + history) as u64
    }

    /// Ends writes, where another store may open the same files next while a request to this one is still under way.
    fn close(&self) {}

    /// Drops history up to and including `revision`, as if its time had come.
    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>>;
}
