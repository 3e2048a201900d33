//! A live copy of the objects of one kind, shared by all controllers of the process.
//!
//! A cache follows the API by kube's watcher ([`follow`]), either all objects of a kind or those that its selectors and
//! the references of others name ([`named`]). Readers get `Arc`s of the stored objects; subscribers are called with every
//! change and must only put keys into their own [`WorkQueue`](crate::queue::WorkQueue), so that a slow controller delays
//! no other. Of `managedFields` a cache keeps only the entries of Drover's own managers, as [text](crate::fields), which
//! [`apply`](crate::apply) needs to find that nothing would change. [`Caches`] holds all caches of the process.

mod caches;
mod follow;
mod named;
mod objects;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use kube::Resource;
use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::counter::Counter;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

pub use caches::{Caches, Selector};
use named::Named;
use objects::{Inserted, NAMED, Objects, Sources, revision_of};

use crate::{Metrics, ObjectKey, fields};

/// The field managers whose ownership a cache remembers begin with this.
pub const MANAGER_PREFIX: &str = "drover/";

/// What a cache can hold.
pub trait Cached: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Cached for K {}

/// One change of one object. At least one side is there.
pub struct Change<'a, K> {
    pub key: &'a ObjectKey,
    pub old: Option<&'a Arc<K>>,
    pub new: Option<&'a Arc<K>>,
}

impl<K> Change<'_, K> {
    /// The object as it is now, or as it was before it was deleted.
    pub fn either(&self) -> Option<&Arc<K>> {
        self.new.or(self.old)
    }
}

/// What a cache knows of a key.
#[derive(Clone, Debug)]
pub enum Lookup<K> {
    Found(Arc<K>),
    /// There is no such object.
    Missing,
    /// The cache does not hold this object, or has not read it yet.
    Unknown,
}

type Subscriber<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// A live copy of objects of one kind. Clones share it.
pub struct Cache<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<K> {
    objects: RwLock<Objects<K>>,
    subscribers: Mutex<Vec<Subscriber<K>>>,
    /// The watches whose first list is not complete.
    unlisted: AtomicU16,
    newest: AtomicU64,
    /// The highest revision seen; 0 until every first list is complete.
    revision: watch::Sender<u64>,
    /// Objects that are held because others refer to them; `None` in a cache of all objects.
    named: Option<Named<K>>,
    /// Where the controllers that it feeds are counted.
    metrics: Option<Metrics>,
    /// Counts [`Cache::list`].
    lists: Counter,
    /// Removes what is not kept of an object.
    trim: fn(&mut K),
}

impl<K: Cached> Cache<K> {
    fn empty(unlisted: Sources, metrics: Option<Metrics>, trim: fn(&mut K)) -> Inner<K> {
        Inner {
            objects: RwLock::default(),
            subscribers: Mutex::new(vec![]),
            unlisted: AtomicU16::new(unlisted),
            newest: AtomicU64::new(0),
            revision: watch::Sender::new(0),
            named: None,
            metrics,
            lists: Counter::default(),
            trim,
        }
    }

    fn of(inner: Inner<K>) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// A cache with fixed content, for tests of code that reads caches.
    pub fn fixed(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::of(Self::empty(1, None, |_| {}));
        cache.replace(objects.into_iter().collect(), 1, None);
        cache
    }

    /// Where the controllers that it feeds are counted, if anywhere.
    pub(crate) fn metrics(&self) -> Option<&Metrics> {
        self.inner.metrics.as_ref()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.inner.objects.read().get(key).cloned()
    }

    /// The object, or whether it is certain that there is none.
    pub fn look_up(&self, key: &ObjectKey) -> Lookup<K> {
        // Asked before: what the watch delivers first, it lists after.
        let listed = self.inner.named.as_ref().is_none_or(|named| named.is_listed(key));
        match self.get(key) {
            Some(object) => Lookup::Found(object),
            None if listed => Lookup::Missing,
            None => Lookup::Unknown,
        }
    }

    /// Holds these objects because `owner` refers to them, whether the selectors match them or not; replaces what `owner`
    /// referred to before. Nothing changes in a cache of all objects. Not to be called by a subscriber of this cache.
    pub fn refer(&self, owner: &str, keys: impl IntoIterator<Item = ObjectKey>) {
        if let Some(named) = &self.inner.named {
            named.refer(self, owner, keys.into_iter().collect());
        }
    }

    /// Whether both share one copy.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// All objects, sorted by key. It costs as much as there are objects: an event must not need it.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.inner.lists.inc();
        let objects = self.inner.objects.read();
        let mut all: Vec<_> = objects.iter().collect();
        all.sort_by_key(|(key, _)| *key);
        all.into_iter().map(|(_, object)| object.clone()).collect()
    }

    /// Adds an index; `values` returns the values under which an object is found. The first definition of a name wins.
    pub fn index(&self, name: &'static str, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        self.inner.objects.write().index(name, Box::new(values));
    }

    /// Indexes by the uid of every owner, under the name `owner`.
    pub fn index_by_owner(&self) {
        self.index("owner", |object| {
            object.meta().owner_references.iter().flatten().map(|owner| owner.uid.clone()).collect()
        });
    }

    /// Indexes by `<namespace>/<value of the label>`, under the label's own name.
    pub fn index_by_label(&self, label: &'static str) {
        self.index(label, move |object| {
            let value = object.meta().labels.as_ref().and_then(|labels| labels.get(label));
            value.map(|v| index_value(object.meta().namespace.as_deref(), v)).into_iter().collect()
        });
    }

    /// The objects that an index finds, sorted by key. An index that was never defined finds nothing.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.inner.objects.read().by_index(name, value)
    }

    /// The objects with `label: value` in `namespace`; needs [`index_by_label`](Self::index_by_label).
    pub fn by_label(&self, label: &str, namespace: &str, value: &str) -> Vec<Arc<K>> {
        self.by_index(label, &index_value(Some(namespace), value))
    }

    /// Calls `subscriber` with every object there is and then with every change. It must not block.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        let mut subscribers = self.inner.subscribers.lock();
        let present: Vec<_> =
            self.inner.objects.read().iter().map(|(key, object)| (key.clone(), object.clone())).collect();
        for (key, object) in &present {
            subscriber(&Change { key, old: None, new: Some(object) });
        }
        subscribers.push(Box::new(subscriber));
    }

    /// Ends when every first list is complete. Objects that are held by reference are not waited for.
    pub async fn synced(&self) {
        // The sender lives in `inner`, so the channel cannot be closed while we wait.
        let _ = self.inner.revision.subscribe().wait_for(|revision| *revision > 0).await;
    }

    pub fn is_synced(&self) -> bool {
        *self.inner.revision.borrow() > 0
    }

    /// Waits until a cache with one watch has seen `revision` of this kind (from an object that a write returned), so that
    /// the next pass does not act on what was before our own write. `false` when it did not within `limit`.
    pub async fn caught_up(&self, revision: &str, limit: Duration) -> bool {
        let Ok(wanted) = revision.parse::<u64>() else { return true };
        let mut seen = self.inner.revision.subscribe();
        tokio::time::timeout(limit, seen.wait_for(|seen| *seen >= wanted)).await.is_ok_and(|r| r.is_ok())
    }

    /// The same for one object, in a cache with any number of watches. Also `true` once the object is not held.
    pub async fn shows(&self, key: &ObjectKey, revision: &str, limit: Duration) -> bool {
        let Ok(wanted) = revision.parse::<u64>() else { return true };
        let mut seen = self.inner.revision.subscribe();
        let is_shown = |_: &u64| self.get(key).is_none_or(|object| revision_of(object.as_ref()) >= wanted);
        tokio::time::timeout(limit, seen.wait_for(is_shown)).await.is_ok_and(|r| r.is_ok())
    }

    /// Takes over a complete list of a watch; `scope` is the object that the watch is limited to, if it is.
    fn replace(&self, objects: Vec<K>, source: Sources, scope: Option<&ObjectKey>) {
        let fresh: Vec<(ObjectKey, K)> = objects.into_iter().map(|o| (ObjectKey::of(&o), o)).collect();
        let gone: Vec<ObjectKey> = {
            let known: std::collections::HashSet<&ObjectKey> = fresh.iter().map(|(key, _)| key).collect();
            let objects = self.inner.objects.read();
            let of_watch = |key: &&ObjectKey| scope.is_none_or(|scope| scope == *key);
            let held = objects.of_source(source).filter(of_watch);
            held.filter(|key| !known.contains(key)).cloned().collect()
        };
        let mut newest = 1;
        for (_, object) in fresh {
            newest = newest.max(revision_of(&object));
            self.upsert(object, source);
        }
        for key in gone {
            self.remove(&key, source);
        }
        self.inner.unlisted.fetch_and(!source, Ordering::SeqCst);
        self.seen(newest);
    }

    fn upsert(&self, mut object: K, source: Sources) {
        trim_managed_fields(&mut object);
        (self.inner.trim)(&mut object);
        let key = ObjectKey::of(&object);
        let object = Arc::new(object);
        // Held over both steps, so that a new subscriber misses nothing and sees nothing twice out of order.
        let subscribers = self.inner.subscribers.lock();
        let ended = |named: &Named<K>| source == NAMED && !named.is_watched(&key);
        if self.inner.named.as_ref().is_some_and(ended) {
            return;
        }
        let inserted = self.inner.objects.write().insert(&key, &object, source);
        if let Inserted::Changed(old) = inserted {
            notify(&subscribers, &Change { key: &key, old: old.as_ref(), new: Some(&object) });
        }
    }

    fn remove(&self, key: &ObjectKey, source: Sources) {
        let subscribers = self.inner.subscribers.lock();
        let Some(old) = self.inner.objects.write().remove(key, source) else { return };
        notify(&subscribers, &Change { key, old: Some(&old), new: None });
    }

    fn seen(&self, revision: u64) {
        let newest = self.inner.newest.fetch_max(revision, Ordering::SeqCst).max(revision);
        if self.inner.unlisted.load(Ordering::SeqCst) == 0 {
            // Also without a new maximum: `shows` waits for objects.
            self.inner.revision.send_modify(|seen| *seen = newest.max(*seen));
        }
    }
}

/// A subscriber that panics misses one change; the others get it.
fn notify<K>(subscribers: &[Subscriber<K>], change: &Change<'_, K>) {
    for subscriber in subscribers {
        if catch_unwind(AssertUnwindSafe(|| subscriber(change))).is_err() {
            tracing::error!(key = %change.key, kind = std::any::type_name::<K>(), "a subscriber panicked");
        }
    }
}

fn index_value(namespace: Option<&str>, value: &str) -> String {
    format!("{}/{value}", namespace.unwrap_or_default())
}

fn trim_managed_fields<K: Resource>(object: &mut K) {
    if let Some(entries) = &mut object.meta_mut().managed_fields {
        entries.retain(|entry| entry.manager.as_deref().is_some_and(|m| m.starts_with(MANAGER_PREFIX)));
        entries.shrink_to_fit();
        entries.iter_mut().for_each(fields::fold);
    }
}
