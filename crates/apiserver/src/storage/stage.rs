//! Checks writes in order, against committed state and the earlier writes of the batch.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Change, Event, EventKind, Expect, Index, Key, StorageError, Version, Write};

/// The accepted writes of one batch.
pub(super) struct Stage<'a> {
    index: &'a Index,
    revision: u64,
    pending: HashMap<Key, Option<Arc<Version>>>,
    events: Vec<Arc<Event>>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(index: &'a Index) -> Self {
        Self { index, revision: index.revision(), pending: HashMap::new(), events: Vec::new() }
    }

    /// Accepts the write with the next revision, or returns the conflict.
    pub(super) fn judge(&mut self, write: &Write, now: Timestamp) -> Result<Arc<Event>, StorageError> {
        let current = match self.pending.get(&write.key) {
            Some(staged) => staged.clone(),
            None => self.index.get(&write.key),
        };
        let holds = match (write.expect, &current) {
            (Expect::Absent, None) => true,
            (Expect::Revision(revision), Some(version)) => version.revision() == revision,
            _ => false,
        };
        if !holds {
            return Err(StorageError::Conflict { current });
        }
        let revision = self.revision + 1;
        let key = write.key.clone();
        let created = current.as_ref().map_or(revision, |version| version.created());
        let (kind, version) = match (&write.change, &current) {
            (Change::Put(encoded), None) => {
                (EventKind::Added, Version::splice(key, revision, created, encoded))
            }
            (Change::Put(encoded), Some(_)) => {
                (EventKind::Modified, Version::splice(key, revision, created, encoded))
            }
            (Change::Delete { last: Some(encoded) }, Some(_)) => {
                (EventKind::Deleted, Version::splice(key, revision, created, encoded))
            }
            (Change::Delete { last: None }, Some(stored)) => {
                (EventKind::Deleted, stored.at_revision(revision))
            }
            (Change::Delete { .. }, None) => return Err(StorageError::Conflict { current: None }),
        };
        self.revision = revision;
        let event = Arc::new(Event::new(kind, Arc::new(version), current, now));
        let after = (kind != EventKind::Deleted).then(|| event.version.clone());
        self.pending.insert(write.key.clone(), after);
        self.events.push(event.clone());
        Ok(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Makes the batch visible; call only after it is durable.
    pub(super) fn publish(self) {
        self.index.publish(self.events, self.revision);
    }
}
