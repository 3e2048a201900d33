//! Logs of single objects, for watchers of one object.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::watch;

use super::Key;
use super::index::Event;

/// The logs of the objects of a resource that are followed.
#[derive(Default)]
pub(super) struct Singles {
    logs: HashMap<Key, Single>,
}

struct Single {
    log: VecDeque<Arc<Event>>,
    /// Events up to and including this revision may be missing.
    oldest: u64,
    head: watch::Sender<u64>,
}

impl Singles {
    /// Starts or joins the log of an object from revision `after` on; `topic` is the log of its resource, which begins
    /// before.
    pub(super) fn follow(
        &mut self,
        key: &Key,
        after: u64,
        topic: &VecDeque<Arc<Event>>,
    ) -> watch::Receiver<u64> {
        let events = || {
            let from = topic.partition_point(|event| event.revision() <= after);
            topic.range(from..).filter(|event| event.version.key() == key).cloned().collect()
        };
        let single = self.logs.entry(key.clone()).or_insert_with(|| Single {
            log: events(),
            oldest: after,
            head: watch::Sender::new(0),
        });
        if after < single.oldest {
            (single.log, single.oldest) = (events(), after);
        }
        single.head.subscribe()
    }

    /// The events of an object, and the revision up to which they may be missing.
    pub(super) fn get(&self, key: &Key) -> Option<(&VecDeque<Arc<Event>>, u64)> {
        self.logs.get(key).map(|single| (&single.log, single.oldest))
    }

    /// Adds a committed event; returns whom to notify.
    pub(super) fn push(&mut self, event: &Arc<Event>) -> Option<watch::Sender<u64>> {
        let single = self.logs.get_mut(event.version.key())?;
        single.log.push_back(event.clone());
        Some(single.head.clone())
    }

    /// Drops an event that history no longer has. Without an event of its own, an object's log stays complete however
    /// far history is compacted.
    pub(super) fn forget(&mut self, event: &Event) {
        let Some(single) = self.logs.get_mut(event.version.key()) else { return };
        while single.log.front().is_some_and(|first| first.revision() <= event.revision()) {
            single.log.pop_front();
        }
        single.oldest = single.oldest.max(event.revision());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.logs.len()
    }

    /// Drops the logs that nobody follows any more.
    pub(super) fn retain_followed(&mut self) {
        self.logs.retain(|_, single| single.head.receiver_count() > 0);
    }
}
