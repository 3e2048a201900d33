//! The store: one global revision, compare-and-swap writes, and committed state in memory.
//!
//! A backend only makes writes durable. Everything that is read (objects, lists at a revision, the event log) comes
//! from the shared [`Index`], which has committed state only. Read `index.rs` first, then `memory.rs`, then `sqlite/`.

mod cold;
mod index;
mod journal;
mod memory;
mod single;
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

/// Why a write or read failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    /// The expectation of the write does not hold; has the current version.
    #[error("the stored version differs from the expected one")]
    Conflict {
        /// The stored version, as of the commit in which the write was checked.
        current: Option<Arc<Version>>,
    },
    /// The history no longer has this revision.
    #[error("revision {asked} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// The requested revision.
        asked: u64,
        /// The oldest available revision.
        oldest: u64,
    },
    /// The revision is in the future.
    #[error("revision {asked} is newer than the current revision {current}")]
    Future {
        /// The requested revision.
        asked: u64,
        /// The current revision.
        current: u64,
    },
    /// The disk is full; nothing was stored.
    #[error("no space left for the store: {0}")]
    Full(Arc<str>),
    /// The backend failed; nothing was stored.
    #[error("the store failed: {0}")]
    Backend(Arc<str>),
    /// Another process uses the data directory.
    #[error("the store in {0} is in use by another server; stop that server or choose another directory")]
    InUse(Arc<str>),
    /// The file was written by a newer release.
    #[error(
        "the store in {path} has schema version {found}, but this program supports up to {known}; use the newer release"
    )]
    NewerSchema {
        /// The file.
        path: Arc<str>,
        /// Version in the file.
        found: i64,
        /// The latest version that this program supports.
        known: i64,
    },
    /// The file is not a store, or is incomplete.
    #[error("the store {path} is damaged ({why}); it was not modified")]
    Damaged {
        /// The file.
        path: Arc<str>,
        /// What is damaged.
        why: Arc<str>,
    },
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

/// The expected current state of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The object does not exist.
    Absent,
    /// The object has exactly this revision.
    Revision(u64),
}

/// A change of one key.
#[derive(Clone, Debug)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// The expected current state.
    pub expect: Expect,
    /// The change.
    pub change: Change,
}

/// The kinds of changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// Stores this object.
    Put(Encoded),
    /// Removes the object. The event has `last`, or the stored object if that is `None`, with the revision of the
    /// removal.
    Delete {
        /// The final state for watchers.
        last: Option<Encoded>,
    },
}

/// An object encoded as JSON, with a hole for the digits of `resourceVersion`.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// JSON in which `resourceVersion` is the empty string.
    pub json: Bytes,
    /// The offset of the digits (just after the opening quote).
    pub hole: u32,
}

/// A store.
pub trait Storage: Send + Sync + 'static {
    /// Checks the write against all earlier writes and makes it durable. After `Ok`, the write is durable and visible
    /// to every reader; after an error, nothing has changed.
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>>;

    /// Committed state and history.
    fn index(&self) -> &Index;

    /// Whether the backend can still write.
    fn health(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// The size of the backend's files in bytes.
    fn size(&self) -> u64 {
        let (objects, history) = self.index().bytes();
        (objects + history) as u64
    }

    /// Rejects further writes, because another store may open the same files while a request to this one is still in
    /// progress.
    fn close(&self) {}

    /// Drops history up to and including `revision` immediately.
    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>>;
}
