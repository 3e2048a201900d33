//! Follows the store: first all existing objects, then every change, without gaps.

use crate::storage::{EventKind, Range, Storage, StorageError, Tail, Version};
use std::sync::Arc;

/// Events read from a log at once.
const BATCH: usize = 2_000;

/// A change for a controller.
#[derive(Debug)]
pub(crate) enum Change {
    /// Earlier changes are void; all existing objects follow.
    Reset,
    /// The object exists in this version.
    Present(Arc<Version>),
    /// The object was deleted; this was its last state.
    Gone(Arc<Version>),
}

/// The resources to follow.
#[derive(Clone, Debug)]
pub(crate) enum Topics {
    /// These (group, resource).
    Some(&'static [(&'static str, &'static str)]),
    /// All.
    All,
}

/// Reads the logs of some resources at its own pace.
pub(crate) struct Follower {
    storage: Arc<dyn Storage>,
    topics: Topics,
    tails: Vec<Tail>,
}

impl Follower {
    pub(crate) fn new(storage: Arc<dyn Storage>, topics: Topics) -> Self {
        Self { storage, topics, tails: Vec::new() }
    }

    /// The next changes, in order per object; waits until there are some. Cancel-safe: it only consumes the changes
    /// that it returns.
    pub(crate) async fn next(&mut self) -> Vec<Change> {
        loop {
            let changes = self.ready();
            if !changes.is_empty() {
                return changes;
            }
            let waits = self.tails.iter_mut().map(|tail| Box::pin(tail.changed()));
            futures::future::select_all(waits).await;
        }
    }

    /// The available changes, without waiting.
    pub(crate) fn ready(&mut self) -> Vec<Change> {
        if self.tails.is_empty() {
            return self.reload();
        }
        let mut changes = Vec::new();
        for tail in &mut self.tails {
            match self.storage.index().read(tail, BATCH) {
                Ok(batch) => changes.extend(batch.events.iter().map(|event| match event.kind {
                    EventKind::Deleted => Change::Gone(event.version.clone()),
                    _ => Change::Present(event.version.clone()),
                })),
                // The log no longer has the next event.
                Err(_) => return self.reload(),
            }
        }
        changes
    }

    fn reload(&mut self) -> Vec<Change> {
        let index = self.storage.index();
        loop {
            // Follow from before the lists: a change in between is reported twice rather than never.
            let after = index.revision();
            let mut changes = vec![Change::Reset];
            let tails: Result<Vec<Tail>, StorageError> = match &self.topics {
                Topics::Some(topics) => topics.iter().map(|(g, r)| index.follow(g, r, after)).collect(),
                Topics::All => index.follow_all(after).map(|tail| vec![tail]),
            };
            let Ok(tails) = tails else { continue };
            let mut list = |group: &str, resource: &str| {
                let range = Range { group, resource, ..Range::default() };
                changes.extend(index.list(&range).0.into_iter().map(Change::Present));
            };
            match &self.topics {
                Topics::Some(topics) => topics.iter().for_each(|(g, r)| list(g, r)),
                Topics::All => index.resources().iter().for_each(|(g, r)| list(g, r)),
            }
            self.tails = tails;
            return changes;
        }
    }
}
