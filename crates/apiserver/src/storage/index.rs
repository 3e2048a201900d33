//! Committed state in memory: the current objects, and one ordered event log that is also the history.
//!
//! A list at an older revision is the current state with later events undone, so there are no old versions to
//! garbage-collect: history is as long as the log. Watchers read the log of their resource at their own pace. A slow
//! watcher does not affect others; one that falls behind the start of the log gets an error that its revision is
//! compacted. Watchers of a single object read a log of its own ([`single`](super::single)): thousands of node agents
//! each watch one Secret, and a change of another Secret must not wake them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::cold::Plain;
use super::single::Singles;
use super::{Key, StorageError, Version};
use crate::metrics::Commits;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The object was created.
    Added,
    /// The object was modified.
    Modified,
    /// The object was removed.
    Deleted,
}

/// A committed change.
#[derive(Debug)]
pub struct Event {
    /// The kind of change.
    pub kind: EventKind,
    /// The new state; for a removal the last state, with the revision of the removal.
    pub version: Arc<Version>,
    /// The state before, unless the object did not exist.
    pub previous: Option<Arc<Version>>,
    /// The time of the commit.
    pub at: Timestamp,
    left: OnceLock<Arc<Version>>,
}

impl Event {
    /// Creates an event.
    pub fn new(
        kind: EventKind,
        version: Arc<Version>,
        previous: Option<Arc<Version>>,
        at: Timestamp,
    ) -> Self {
        Self { kind, version, previous, at, left: OnceLock::new() }
    }

    /// Its revision.
    pub fn revision(&self) -> u64 {
        self.version.revision()
    }

    /// The previous content with the new revision: sent to watchers whose selector no longer matches.
    pub fn left(&self) -> Option<&Arc<Version>> {
        let previous = self.previous.as_ref()?;
        Some(self.left.get_or_init(|| Arc::new(previous.at_revision(self.revision()))))
    }

    fn weight(&self) -> usize {
        self.version.len() + 200
    }
}

/// How much history is kept. Events older than `max_age` are dropped, but at least `min_events` are kept, at most
/// `max_events`, and at most `max_bytes`. The byte limit is at least the size of the current objects, because listing
/// and watching many objects takes longer.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Age after which an event may go.
    pub max_age: SignedDuration,
    /// Events that are kept regardless of age.
    pub min_events: usize,
    /// Maximum number of events.
    pub max_events: usize,
    /// Maximum bytes of object data, or the size of the current objects if that is larger.
    pub max_bytes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            max_age: SignedDuration::from_mins(5),
            min_events: 1_000,
            max_events: 100_000,
            max_bytes: 8 << 20,
        }
    }
}

/// Committed state. Cheap to read from any thread; only a backend publishes to it.
pub struct Index {
    state: RwLock<State>,
    head: watch::Sender<u64>,
    retention: Retention,
    /// Events since it was last computed whether history is too long.
    unchecked: AtomicUsize,
    commits: Commits,
    plain: Plain,
}

#[derive(Default)]
struct State {
    revision: u64,
    compacted: u64,
    topics: HashMap<Box<str>, Topic>,
    log: VecDeque<Arc<Event>>,
    log_bytes: usize,
    /// Size of the current objects.
    object_bytes: usize,
}

struct Topic {
    objects: BTreeMap<Key, Arc<Version>>,
    log: VecDeque<Arc<Event>>,
    head: watch::Sender<u64>,
    singles: Singles,
}

impl Default for Topic {
    fn default() -> Self {
        let head = watch::Sender::new(0);
        Self { objects: BTreeMap::new(), log: VecDeque::new(), head, singles: Singles::default() }
    }
}

/// The keys to list.
#[derive(Clone, Debug, Default)]
pub struct Range<'a> {
    /// API group.
    pub group: &'a str,
    /// Plural resource.
    pub resource: &'a str,
    /// Only this namespace, if set.
    pub namespace: Option<&'a str>,
    /// Start at this key (inclusive), in the text form of [`Key`].
    pub start: Option<&'a str>,
}

/// A part of a list, all of it at one revision.
#[derive(Debug)]
pub struct Page {
    /// Objects in key order.
    pub items: Vec<Arc<Version>>,
    /// The number of further objects.
    pub remaining: usize,
}

/// Events of a log, and the revision up to which the log was read.
#[derive(Debug)]
pub struct Batch {
    /// Events in revision order.
    pub events: Vec<Arc<Event>>,
    /// All events up to this revision have been returned.
    pub revision: u64,
}

impl Index {
    /// An empty store. Revisions start at 1, so that the first write gets 2 and no list has resourceVersion "0".
    pub fn new(retention: Retention) -> Self {
        let state = State { revision: 1, compacted: 0, ..State::default() };
        Self {
            state: RwLock::new(state),
            head: watch::Sender::new(1),
            retention,
            unchecked: AtomicUsize::new(0),
            commits: Commits::default(),
            plain: Plain::default(),
        }
    }

    /// Metrics of commits.
    pub(crate) fn commits(&self) -> &Commits {
        &self.commits
    }

    /// Bytes of the current objects, and of the history.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let state = self.state.read();
        (state.object_bytes, state.log_bytes)
    }

    /// The current revision.
    pub fn revision(&self) -> u64 {
        self.state.read().revision
    }

    /// History up to and including this revision has been dropped.
    pub fn compacted(&self) -> u64 {
        self.state.read().compacted
    }

    /// The current version of an object.
    pub fn get(&self, key: &Key) -> Option<Arc<Version>> {
        self.state.read().topics.get(key.topic())?.objects.get(key).cloned()
    }

    /// Number of objects of a resource.
    pub fn count(&self, group: &str, resource: &str) -> usize {
        let state = self.state.read();
        state.topics.get(&*topic_name(group, resource)).map_or(0, |topic| topic.objects.len())
    }

    /// Resources (`group`, `resource`) with at least one object.
    pub fn resources(&self) -> Vec<(String, String)> {
        let state = self.state.read();
        let held = state.topics.iter().filter(|(_, topic)| !topic.objects.is_empty());
        held.filter_map(|(name, _)| name.split_once('/')).map(|(g, r)| (g.into(), r.into())).collect()
    }

    /// All objects of a range, with the revision at which they were read.
    pub fn list(&self, range: &Range<'_>) -> (Vec<Arc<Version>>, u64) {
        let state = self.state.read();
        let items = state
            .topics
            .get(&*topic_name(range.group, range.resource))
            .map(|topic| topic.objects.range(bounds(range)).map(|(_, v)| v.clone()).collect())
            .unwrap_or_default();
        (items, state.revision)
    }

    /// The object if it exists, with the revision at which it was read.
    pub fn list_object(&self, key: &Key) -> (Vec<Arc<Version>>, u64) {
        let state = self.state.read();
        let found = state.topics.get(key.topic()).and_then(|topic| topic.objects.get(key));
        (found.cloned().into_iter().collect(), state.revision)
    }

    /// At most `limit` objects of a range as they were at `revision`. `count` requests [`Page::remaining`], which walks
    /// the rest of the range.
    pub fn page(
        &self,
        range: &Range<'_>,
        revision: u64,
        limit: usize,
        count: bool,
    ) -> Result<Page, StorageError> {
        let state = self.state.read();
        state.check(revision)?;
        let Some(topic) = state.topics.get(&*topic_name(range.group, range.resource)) else {
            return Ok(Page { items: Vec::new(), remaining: 0 });
        };
        let bounds = bounds(range);
        let undone = topic.undone(revision);
        let mut past = undone.range(bounds.clone()).peekable();
        let mut present = topic.objects.range(bounds).peekable();
        let mut items = Vec::new();
        let mut remaining = 0;
        loop {
            let undo = match (past.peek(), present.peek()) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((old, _)), Some((key, _))) => *old <= *key,
            };
            let version = if undo {
                let Some((key, version)) = past.next() else { break };
                if present.peek().is_some_and(|(k, _)| *k == key) {
                    present.next();
                }
                version.as_ref()
            } else {
                present.next().map(|(_, version)| version)
            };
            let Some(version) = version else { continue };
            if items.len() < limit {
                items.push(version.clone());
            } else {
                remaining += 1;
                if !count {
                    break;
                }
            }
        }
        Ok(Page { items, remaining })
    }

    /// The object as it was at `revision`.
    pub fn get_at(&self, key: &Key, revision: u64) -> Result<Option<Arc<Version>>, StorageError> {
        let state = self.state.read();
        state.check(revision)?;
        let Some(topic) = state.topics.get(key.topic()) else { return Ok(None) };
        let after = topic.log.partition_point(|event| event.revision() <= revision);
        let undone = topic.log.range(after..).find(|event| event.version.key() == key);
        Ok(match undone {
            Some(event) => event.previous.clone(),
            None => topic.objects.get(key).cloned(),
        })
    }

    /// Waits until the store has reached `revision`.
    pub async fn reached(&self, revision: u64) {
        let mut head = self.head.subscribe();
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = head.wait_for(|current| *current >= revision).await;
    }

    /// Follows the events of one resource after revision `after`.
    pub fn follow(&self, group: &str, resource: &str, after: u64) -> Result<Tail, StorageError> {
        let name = topic_name(group, resource);
        {
            let state = self.state.read();
            state.check(after)?;
            if let Some(topic) = state.topics.get(&*name) {
                let head = topic.head.subscribe();
                return Ok(Tail { log: Log::Topic(name), after, head });
            }
        }
        let mut state = self.state.write();
        state.check(after)?;
        let head = state.topics.entry(name.clone()).or_default().head.subscribe();
        Ok(Tail { log: Log::Topic(name), after, head })
    }

    /// Follows the events of one object after revision `after`. Changes of other objects do not wake the follower.
    pub fn follow_object(&self, key: &Key, after: u64) -> Result<Tail, StorageError> {
        let mut state = self.state.write();
        state.check(after)?;
        let topic = state.topics.entry(key.topic().into()).or_default();
        let head = topic.singles.follow(key, after, &topic.log);
        Ok(Tail { log: Log::Object(key.clone()), after, head })
    }

    #[cfg(test)]
    pub(super) fn followed_objects(&self) -> usize {
        self.state.read().topics.values().map(|topic| topic.singles.len()).sum()
    }

    /// Follows the events of all resources after revision `after`.
    pub fn follow_all(&self, after: u64) -> Result<Tail, StorageError> {
        self.state.read().check(after)?;
        Ok(Tail { log: Log::All, after, head: self.head.subscribe() })
    }

    /// Reads further events of a log; empty if there are none.
    pub fn read(&self, tail: &mut Tail, max: usize) -> Result<Batch, StorageError> {
        tail.head.mark_unchanged();
        let state = self.state.read();
        let (log, oldest) = match &tail.log {
            Log::All => (Some(&state.log), state.compacted),
            Log::Topic(name) => (state.topics.get(name).map(|topic| &topic.log), state.compacted),
            Log::Object(key) => {
                match state.topics.get(key.topic()).and_then(|topic| topic.singles.get(key)) {
                    Some((log, oldest)) => (Some(log), oldest),
                    None => (None, state.compacted),
                }
            }
        };
        if tail.after < oldest {
            return Err(StorageError::Compacted { asked: tail.after, oldest });
        }
        let mut events = Vec::new();
        let mut revision = state.revision;
        if let Some(log) = log {
            let from = log.partition_point(|event| event.revision() <= tail.after);
            let to = log.len().min(from.saturating_add(max));
            events.extend(log.range(from..to).cloned());
            if to < log.len() {
                revision = events.last().map_or(tail.after, |event| event.revision());
            }
        }
        tail.after = revision;
        Ok(Batch { events, revision })
    }

    /// Applies committed events in order and wakes their watchers. `revision` is the new head.
    pub(super) fn publish(&self, events: Vec<Arc<Event>>, revision: u64) {
        self.commits.writes.observe(events.len() as f64);
        self.unchecked.fetch_add(events.len(), Ordering::Relaxed);
        self.plain.extend(events.iter().map(|event| &event.version));
        let mut to_notify: Vec<(watch::Sender<u64>, u64)> = Vec::new();
        {
            let mut state = self.state.write();
            for event in events {
                let topic_name = event.version.key().topic();
                if !state.topics.contains_key(topic_name) {
                    state.topics.insert(topic_name.into(), Topic::default());
                }
                state.log_bytes += event.weight();
                state.log.push_back(event.clone());
                let Some(topic) = state.topics.get_mut(event.version.key().topic()) else { continue };
                let key = event.version.key().clone();
                let (before, now) = match event.kind {
                    EventKind::Deleted => (topic.objects.remove(&key), 0),
                    _ => (topic.objects.insert(key, event.version.clone()), event.version.len()),
                };
                let revision = event.revision();
                to_notify.extend(topic.singles.push(&event).map(|head| (head, revision)));
                topic.log.push_back(event);
                if topic.head.receiver_count() > 0 {
                    to_notify.push((topic.head.clone(), revision));
                }
                state.object_bytes += now;
                state.object_bytes -= before.map_or(0, |before| before.len());
            }
            state.revision = state.revision.max(revision);
        }
        for (sender, revision) in to_notify {
            sender.send_replace(revision);
        }
        self.head.send_replace(revision);
    }

    /// Compresses some versions that were written long ago; returns whether there are more. Called by backends between
    /// writes.
    pub(super) fn shrink(&self) -> bool {
        self.plain.shrink()
    }

    /// The revision up to which history should be dropped now, if any.
    pub(super) fn compaction_due(&self, now: Timestamp) -> Option<u64> {
        let keep = self.retention;
        // Compact in steps of many events, so that the cost per write is small.
        let stride = (keep.max_events / 20).clamp(1, 1_000);
        if self.unchecked.load(Ordering::Relaxed) < stride / 10 {
            return None;
        }
        self.unchecked.store(0, Ordering::Relaxed);
        let state = self.state.read();
        let max_bytes = keep.max_bytes.max(state.object_bytes);
        let mut due = None;
        let mut left = state.log.len();
        let mut bytes = state.log_bytes;
        for event in &state.log {
            let old = now.duration_since(event.at) > keep.max_age && left > keep.min_events;
            if !old && left <= keep.max_events && bytes <= max_bytes {
                break;
            }
            left -= 1;
            bytes -= event.weight();
            due = Some(event.revision());
        }
        due.filter(|_| state.log.len() - left >= stride)
    }

    /// Drops history up to and including `revision`.
    pub(super) fn forget(&self, revision: u64) {
        let mut state = self.state.write();
        let revision = revision.min(state.revision);
        while let Some(event) = state.log.front().filter(|event| event.revision() <= revision).cloned() {
            state.log.pop_front();
            state.log_bytes -= event.weight();
            if let Some(topic) = state.topics.get_mut(event.version.key().topic()) {
                topic.log.pop_front();
                topic.singles.forget(&event);
            }
        }
        state.topics.values_mut().for_each(|topic| topic.singles.retain_followed());
        state.compacted = state.compacted.max(revision);
    }

    /// Fills an empty index from a backend's file: objects first, then the events after `compacted`.
    pub(super) fn load(
        &self,
        objects: Vec<Arc<Version>>,
        events: Vec<Arc<Event>>,
        revision: u64,
        compacted: u64,
    ) {
        let mut state = self.state.write();
        let removals = events.iter().filter(|event| event.kind == EventKind::Deleted);
        self.plain.extend(events.iter().filter_map(|event| event.previous.as_ref()));
        self.plain.extend(removals.map(|event| &event.version));
        self.plain.extend(&objects);
        for version in objects {
            state.object_bytes += version.len();
            let topic = state.topics.entry(version.key().topic().into()).or_default();
            topic.objects.insert(version.key().clone(), version);
        }
        for event in events {
            state.log_bytes += event.weight();
            state.log.push_back(event.clone());
            let topic = state.topics.entry(event.version.key().topic().into()).or_default();
            topic.log.push_back(event);
        }
        state.revision = revision.max(1);
        state.compacted = compacted;
        self.head.send_replace(state.revision);
    }
}

impl State {
    fn check(&self, revision: u64) -> Result<(), StorageError> {
        if revision > self.revision {
            return Err(StorageError::Future { asked: revision, current: self.revision });
        }
        if revision < self.compacted {
            return Err(StorageError::Compacted { asked: revision, oldest: self.compacted });
        }
        Ok(())
    }
}

impl Topic {
    /// The state at `revision` of each key that changed later.
    fn undone(&self, revision: u64) -> BTreeMap<Key, Option<Arc<Version>>> {
        let mut undone = BTreeMap::new();
        let after = self.log.partition_point(|event| event.revision() <= revision);
        for event in self.log.range(after..) {
            undone.entry(event.version.key().clone()).or_insert_with(|| event.previous.clone());
        }
        undone
    }
}

/// The position of a reader in a log.
pub struct Tail {
    log: Log,
    after: u64,
    head: watch::Receiver<u64>,
}

enum Log {
    All,
    Topic(Box<str>),
    Object(Key),
}

impl Tail {
    /// Waits until there may be new events. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.head.changed().await.is_err() {
            // The index was dropped; there will be no further events.
            std::future::pending::<()>().await;
        }
    }

    /// Everything up to this revision has been read.
    pub fn after(&self) -> u64 {
        self.after
    }
}

fn topic_name(group: &str, resource: &str) -> Box<str> {
    format!("{group}/{resource}").into()
}

type KeyBounds = (Bound<Key>, Bound<Key>);

fn bounds(range: &Range<'_>) -> KeyBounds {
    let mut prefix = format!("{}/{}/", range.group, range.resource);
    if let Some(namespace) = range.namespace {
        prefix.push_str(namespace);
        prefix.push('/');
    }
    // '0' follows '/' in ASCII, so this is the first key after the prefix.
    let end = format!("{}0", &prefix[..prefix.len() - 1]);
    let start = match range.start {
        Some(start) if start > prefix.as_str() => start.to_owned(),
        _ => prefix,
    };
    let end = end.max(start.clone());
    (Bound::Included(Key::raw(&start)), Bound::Excluded(Key::raw(&end)))
}
