//! One watch and one copy per kind and declared selector, shared by all controllers of the process.
//!
//! A cache follows the API by kube's watcher. Readers get `Arc`s of the stored objects; subscribers are called
//! with every change and must only put keys into their own [`WorkQueue`](crate::queue::WorkQueue): that is why
//! a slow controller delays nobody. Of `managedFields` a cache keeps only the entries of Drover's own managers,
//! which [`apply`](crate::apply) needs to see that nothing would change.

use std::any::{Any, TypeId};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Metrics, ObjectKey, vital};

/// The field managers whose ownership a cache remembers begin with this.
pub const MANAGER_PREFIX: &str = "drover/";

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

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
    /// The object as it is now, or as it was before it went.
    pub fn either(&self) -> Option<&Arc<K>> {
        self.new.or(self.old)
    }
}

type Subscriber<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;
type IndexFn<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// A live copy of all objects of one kind (and selector). Clones share it.
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
    /// The highest revision seen; 0 until the first list is complete.
    revision: watch::Sender<u64>,
    /// Where the controllers that it feeds are counted.
    metrics: Option<Metrics>,
    /// Removes what is not kept of an object.
    trim: fn(&mut K),
}

struct Objects<K> {
    by_key: HashMap<ObjectKey, Arc<K>>,
    indexes: HashMap<&'static str, Index<K>>,
}

struct Index<K> {
    values: IndexFn<K>,
    keys: HashMap<String, BTreeSet<ObjectKey>>,
}

impl<K: Cached> Cache<K> {
    fn empty(metrics: Option<Metrics>, trim: fn(&mut K)) -> Self {
        let objects = Objects { by_key: HashMap::new(), indexes: HashMap::new() };
        Self {
            inner: Arc::new(Inner {
                objects: RwLock::new(objects),
                subscribers: Mutex::new(vec![]),
                revision: watch::Sender::new(0),
                metrics,
                trim,
            }),
        }
    }

    /// A cache with fixed content, for tests of code that reads caches.
    pub fn fixed(objects: impl IntoIterator<Item = K>) -> Self {
        let cache = Self::empty(None, |_| {});
        cache.replace(objects.into_iter().collect());
        cache
    }

    /// Where the controllers that it feeds are counted, if anywhere.
    pub(crate) fn metrics(&self) -> Option<&Metrics> {
        self.inner.metrics.as_ref()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.inner.objects.read().by_key.get(key).cloned()
    }

    /// Whether both share one copy.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// All objects, sorted by key.
    pub fn list(&self) -> Vec<Arc<K>> {
        let objects = self.inner.objects.read();
        let mut all: Vec<_> = objects.by_key.iter().collect();
        all.sort_by_key(|(key, _)| *key);
        all.into_iter().map(|(_, object)| object.clone()).collect()
    }

    /// Adds an index; `values` says under which values an object is found. The first definition of a name wins.
    pub fn index(&self, name: &'static str, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        let mut objects = self.inner.objects.write();
        if objects.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { values: Box::new(values), keys: HashMap::new() };
        for (key, object) in &objects.by_key {
            index.insert(key, object);
        }
        objects.indexes.insert(name, index);
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
        let objects = self.inner.objects.read();
        let keys = objects.indexes.get(name).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| objects.by_key.get(key).cloned()).collect()
    }

    /// The objects with `label: value` in `namespace`; needs [`index_by_label`](Self::index_by_label).
    pub fn by_label(&self, label: &str, namespace: &str, value: &str) -> Vec<Arc<K>> {
        self.by_index(label, &index_value(Some(namespace), value))
    }

    /// Calls `subscriber` with every object there is and then with every change. It must not block.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        let mut subscribers = self.inner.subscribers.lock();
        let present: Vec<_> =
            self.inner.objects.read().by_key.iter().map(|(k, o)| (k.clone(), o.clone())).collect();
        for (key, object) in &present {
            subscriber(&Change { key, old: None, new: Some(object) });
        }
        subscribers.push(Box::new(subscriber));
    }

    /// Ends when the first list is complete.
    pub async fn synced(&self) {
        // The sender lives in `inner`, so the channel cannot be closed while we wait.
        let _ = self.inner.revision.subscribe().wait_for(|revision| *revision > 0).await;
    }

    pub fn is_synced(&self) -> bool {
        *self.inner.revision.borrow() > 0
    }

    /// Waits until the cache has seen `revision` of this kind (from an object that a write returned), so that
    /// the next pass does not act on what was before our own write. `false` when it did not within `limit`.
    pub async fn caught_up(&self, revision: &str, limit: Duration) -> bool {
        let Ok(wanted) = revision.parse::<u64>() else { return true };
        let mut seen = self.inner.revision.subscribe();
        tokio::time::timeout(limit, seen.wait_for(|seen| *seen >= wanted)).await.is_ok_and(|r| r.is_ok())
    }

    fn replace(&self, objects: Vec<K>) {
        let fresh: HashMap<ObjectKey, K> = objects.into_iter().map(|o| (ObjectKey::of(&o), o)).collect();
        let gone: Vec<ObjectKey> = {
            let objects = self.inner.objects.read();
            objects.by_key.keys().filter(|key| !fresh.contains_key(*key)).cloned().collect()
        };
        let mut newest = 1;
        for (_, object) in fresh {
            newest = newest.max(revision_of(&object));
            self.upsert(object);
        }
        for key in gone {
            self.remove(&key);
        }
        self.inner.revision.send_if_modified(|revision| raise(revision, newest));
    }

    fn upsert(&self, mut object: K) {
        trim_managed_fields(&mut object);
        (self.inner.trim)(&mut object);
        let key = ObjectKey::of(&object);
        let object = Arc::new(object);
        // Held over both steps, so that a new subscriber misses nothing and sees nothing twice out of order.
        let subscribers = self.inner.subscribers.lock();
        let old = self.inner.objects.write().insert(&key, object.clone());
        if old.as_ref().is_some_and(|old| old.meta().resource_version == object.meta().resource_version) {
            return;
        }
        tell(&subscribers, &Change { key: &key, old: old.as_ref(), new: Some(&object) });
    }

    fn remove(&self, key: &ObjectKey) {
        let subscribers = self.inner.subscribers.lock();
        let Some(old) = self.inner.objects.write().remove(key) else { return };
        tell(&subscribers, &Change { key, old: Some(&old), new: None });
    }

    async fn follow(self, api: Api<K>, config: watcher::Config, stop: CancellationToken) {
        let run = async {
            let mut retry = FIRST_RETRY;
            loop {
                let mut initial = vec![];
                let mut stream = pin!(watcher::watcher(api.clone(), config.clone()));
                while let Some(event) = stream.next().await {
                    match event {
                        Ok(event) => {
                            retry = FIRST_RETRY;
                            self.on_event(event, &mut initial);
                        }
                        Err(error) => {
                            tracing::debug!(%error, kind = std::any::type_name::<K>(), "watch interrupted");
                            tokio::time::sleep(retry).await;
                            retry = (retry * 2).min(LAST_RETRY);
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = run => {}
            () = stop.cancelled() => {}
        }
    }

    fn on_event(&self, event: Event<K>, initial: &mut Vec<K>) {
        match event {
            Event::Init => initial.clear(),
            Event::InitApply(object) => initial.push(object),
            Event::InitDone => self.replace(std::mem::take(initial)),
            Event::Apply(object) => {
                let revision = revision_of(&object);
                self.upsert(object);
                self.inner.revision.send_if_modified(|seen| raise(seen, revision));
            }
            Event::Delete(object) => {
                let revision = revision_of(&object);
                self.remove(&ObjectKey::of(&object));
                self.inner.revision.send_if_modified(|seen| raise(seen, revision));
            }
        }
    }
}

impl<K: Cached> Objects<K> {
    fn insert(&mut self, key: &ObjectKey, object: Arc<K>) -> Option<Arc<K>> {
        let old = self.by_key.insert(key.clone(), object.clone());
        for index in self.indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(key, old);
            }
            index.insert(key, &object);
        }
        old
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<K>> {
        let old = self.by_key.remove(key)?;
        self.indexes.values_mut().for_each(|index| index.remove(key, &old));
        Some(old)
    }
}

impl<K> Index<K> {
    fn insert(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey, object: &K) {
        for value in (self.values)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

/// A subscriber that panics misses one change; the others get it.
fn tell<K>(subscribers: &[Subscriber<K>], change: &Change<'_, K>) {
    for subscriber in subscribers {
        if catch_unwind(AssertUnwindSafe(|| subscriber(change))).is_err() {
            tracing::error!(key = %change.key, kind = std::any::type_name::<K>(), "a subscriber panicked");
        }
    }
}

fn index_value(namespace: Option<&str>, value: &str) -> String {
    format!("{}/{value}", namespace.unwrap_or_default())
}

fn revision_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|rv| rv.parse().ok()).unwrap_or(0)
}

fn raise(seen: &mut u64, revision: u64) -> bool {
    let higher = revision > *seen;
    *seen = (*seen).max(revision);
    higher
}

fn trim_managed_fields<K: Resource>(object: &mut K) {
    if let Some(entries) = &mut object.meta_mut().managed_fields {
        entries.retain(|entry| entry.manager.as_deref().is_some_and(|m| m.starts_with(MANAGER_PREFIX)));
        entries.shrink_to_fit();
    }
}

/// All caches of the process; a cache starts when it is first asked for.
#[derive(Clone)]
pub struct Caches {
    client: Client,
    running: Arc<Mutex<HashMap<CacheId, Running>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    metrics: Option<Metrics>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct CacheId {
    type_: TypeId,
    resource: String,
    selector: Selector,
}

struct Running {
    cache: Box<dyn Any + Send + Sync>,
    size: Box<dyn Fn() -> usize + Send + Sync>,
    stop: CancellationToken,
}

/// Which objects of a kind a cache holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl Caches {
    /// Caches that read through `client` until `stop` is cancelled.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        Self { client, running: Arc::default(), tasks: TaskTracker::new(), stop, metrics: None }
    }

    /// Counts the controllers that they feed. To be called before the first cache is asked for.
    #[must_use]
    pub fn counted(self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// The number of objects of each cache, by resource (`machines.cluster.x-k8s.io`).
    pub(crate) fn sizes(&self) -> Vec<(String, usize)> {
        let running = self.running.lock();
        running.iter().map(|(id, running)| (group_resource(&id.resource), (running.size)())).collect()
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The cache of all objects of a kind known at compile time.
    pub fn all<K: Cached>(&self) -> Cache<K>
    where
        K::DynamicType: Default,
    {
        self.select(Selector::default())
    }

    /// The cache of the selected objects of a kind known at compile time.
    pub fn select<K: Cached>(&self, selector: Selector) -> Cache<K>
    where
        K::DynamicType: Default,
    {
        let kind = K::DynamicType::default();
        let resource = format!("{}/{}", K::api_version(&kind), K::plural(&kind));
        let api = |client| Api::all_with(client, &K::DynamicType::default());
        self.start(resource, selector, |_| {}, api)
    }

    /// The cache of all objects of a kind, without what `trim` removes from each. The first caller's `trim` counts.
    pub fn trimmed<K: Cached>(&self, trim: fn(&mut K)) -> Cache<K>
    where
        K::DynamicType: Default,
    {
        let kind = K::DynamicType::default();
        let resource = format!("{}/{}", K::api_version(&kind), K::plural(&kind));
        let api = |client| Api::all_with(client, &K::DynamicType::default());
        self.start(resource, Selector::default(), trim, api)
    }

    /// The cache of a kind that exists only at run time. Ask for it once its CRD is Established.
    pub fn dynamic(&self, resource: &ApiResource) -> Cache<kube::api::DynamicObject> {
        let name = format!("{}/{}", resource.api_version, resource.plural);
        self.start(name, Selector::default(), |_| {}, |client| Api::all_with(client, resource))
    }

    /// Ends the cache of a run-time kind, for instance because its CRD is gone.
    pub fn end_dynamic(&self, resource: &ApiResource) {
        let name = format!("{}/{}", resource.api_version, resource.plural);
        let id = CacheId {
            type_: TypeId::of::<kube::api::DynamicObject>(),
            resource: name,
            selector: Selector::default(),
        };
        if let Some(running) = self.running.lock().remove(&id) {
            running.stop.cancel();
        }
    }

    /// Ends when every watch has stopped; the token given to [`new`](Self::new) must be cancelled.
    pub async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn start<K: Cached>(
        &self,
        resource: String,
        selector: Selector,
        trim: fn(&mut K),
        api: impl FnOnce(Client) -> Api<K>,
    ) -> Cache<K> {
        let id = CacheId { type_: TypeId::of::<K>(), resource, selector };
        let mut running = self.running.lock();
        if let Some(cache) = running.get(&id).and_then(|r| r.cache.downcast_ref::<Cache<K>>()) {
            return cache.clone();
        }
        let config = watcher::Config {
            label_selector: id.selector.labels.clone(),
            field_selector: id.selector.fields.clone(),
            ..watcher::Config::default()
        };
        let cache = Cache::<K>::empty(self.metrics.clone(), trim);
        let stop = self.stop.child_token();
        let follow = cache.clone().follow(api(self.client.clone()), config, stop.clone());
        self.tasks.spawn(vital(follow, self.stop.clone()));
        let counted = cache.clone();
        let size = Box::new(move || counted.inner.objects.read().by_key.len());
        running.insert(id, Running { cache: Box::new(cache.clone()), size, stop });
        cache
    }
}

/// `machines.cluster.x-k8s.io` for `cluster.x-k8s.io/v1beta2/machines`, as Kubernetes' own metrics name resources.
fn group_resource(resource: &str) -> String {
    let mut parts = resource.rsplit('/');
    let (plural, group) = (parts.next().unwrap_or_default(), parts.nth(1));
    group.map_or_else(|| plural.to_owned(), |group| format!("{plural}.{group}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
    use kube::api::ObjectMeta;

    fn config_map(name: &str, revision: u64, cluster: &str) -> ConfigMap {
        let labels = [("cluster".to_owned(), cluster.to_owned())].into();
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("ns".into()),
                resource_version: Some(revision.to_string()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn names(found: &[Arc<ConfigMap>]) -> Vec<&str> {
        found.iter().map(|o| o.metadata.name.as_deref().unwrap()).collect()
    }

    #[test]
    fn resources_are_named_with_their_group() {
        assert_eq!(group_resource("v1/secrets"), "secrets");
        assert_eq!(group_resource("cluster.x-k8s.io/v1beta2/machines"), "machines.cluster.x-k8s.io");
    }

    #[test]
    fn an_index_follows_the_objects() {
        let cache = Cache::fixed([config_map("a", 1, "one"), config_map("b", 2, "two")]);
        cache.index_by_label("cluster");
        assert_eq!(names(&cache.by_label("cluster", "ns", "one")), ["a"]);
        cache.upsert(config_map("a", 3, "two"));
        assert_eq!(names(&cache.by_label("cluster", "ns", "two")), ["a", "b"]);
        assert!(cache.by_label("cluster", "ns", "one").is_empty());
        cache.remove(&ObjectKey::new("ns", "b"));
        assert_eq!(names(&cache.by_label("cluster", "ns", "two")), ["a"]);
    }

    #[test]
    fn subscribers_see_what_is_there_then_every_change_once() {
        let cache = Cache::fixed([config_map("a", 1, "one")]);
        let seen = Arc::new(Mutex::new(vec![]));
        let log = seen.clone();
        cache.subscribe(move |change| {
            log.lock().push((change.key.name.clone(), change.old.is_some(), change.new.is_some()));
        });
        cache.upsert(config_map("a", 1, "one"));
        cache.upsert(config_map("a", 2, "one"));
        cache.replace(vec![config_map("b", 5, "one")]);
        let expected = [("a", false, true), ("a", true, true), ("b", false, true), ("a", true, false)];
        assert_eq!(*seen.lock(), expected.map(|(n, o, w)| (n.to_owned(), o, w)));
    }

    #[tokio::test]
    async fn caught_up_waits_for_the_revision() {
        let cache = Cache::fixed([config_map("a", 7, "one")]);
        assert!(cache.caught_up("7", Duration::from_millis(1)).await);
        assert!(!cache.caught_up("8", Duration::from_millis(1)).await);
        cache.on_event(Event::Apply(config_map("a", 9, "one")), &mut vec![]);
        assert!(cache.caught_up("8", Duration::from_millis(1)).await);
    }

    #[test]
    fn a_subscriber_that_panics_misses_one_change_and_the_others_none() {
        let cache = Cache::fixed([]);
        let seen = Arc::new(Mutex::new(vec![]));
        for part in ["first", "second"] {
            let log = seen.clone();
            cache.subscribe(move |change| {
                log.lock().push((part, change.key.name.clone(), change.new.is_some()));
                assert!(part == "second" || change.key.name != "bad", "on purpose");
            });
        }
        cache.replace(vec![config_map("bad", 1, "one")]);
        cache.upsert(config_map("good", 2, "one"));
        cache.remove(&ObjectKey::new("ns", "bad"));
        let expected = [("bad", true), ("good", true), ("bad", false)];
        let expected =
            expected.map(|(name, there)| ["first", "second"].map(|part| (part, name.to_owned(), there)));
        assert_eq!(*seen.lock(), expected.as_flattened());
    }

    #[test]
    fn objects_are_found_by_each_of_their_owners_while_they_have_them() {
        let owned = |name: &str, revision, owners: &[&str]| {
            let mut object = config_map(name, revision, "one");
            let owner = |uid: &&str| OwnerReference { uid: uid.to_string(), ..OwnerReference::default() };
            object.metadata.owner_references = Some(owners.iter().map(owner).collect());
            object
        };
        let cache = Cache::fixed([owned("a", 1, &["x", "y"]), owned("b", 2, &["y"])]);
        cache.index_by_owner();
        cache.upsert(owned("c", 3, &["y"]));
        assert_eq!(names(&cache.by_index("owner", "x")), ["a"]);
        assert_eq!(names(&cache.by_index("owner", "y")), ["a", "b", "c"]);
        cache.upsert(owned("a", 4, &["x"]));
        cache.remove(&ObjectKey::new("ns", "b"));
        assert_eq!(names(&cache.by_index("owner", "x")), ["a"]);
        assert_eq!(names(&cache.by_index("owner", "y")), ["c"]);
        // A fresh list replaces what was known, in the index too.
        cache.replace(vec![owned("d", 5, &["x"])]);
        assert_eq!(names(&cache.by_index("owner", "x")), ["d"]);
        assert!(cache.by_index("owner", "y").is_empty() && cache.by_index("other", "x").is_empty());
    }

    #[test]
    fn what_is_trimmed_is_not_kept() {
        let cache = Cache::<ConfigMap>::empty(None, |map| map.data = None);
        let mut object = config_map("a", 1, "one");
        object.data = Some([("large".to_owned(), "x".repeat(1000))].into());
        cache.upsert(object.clone());
        object.metadata.resource_version = Some("2".into());
        cache.replace(vec![object]);
        let kept = &cache.list()[0];
        assert_eq!((&kept.data, kept.metadata.resource_version.as_deref()), (&None, Some("2")));
    }

    #[test]
    fn of_managed_fields_only_our_own_are_kept() {
        let mut object = config_map("a", 1, "one");
        let managers = [Some("drover/init/cluster"), Some("kubectl"), None, Some("drover/capi/machine")];
        let entry = |manager: Option<&str>| ManagedFieldsEntry {
            manager: manager.map(str::to_owned),
            ..ManagedFieldsEntry::default()
        };
        object.metadata.managed_fields = Some(managers.into_iter().map(entry).collect());
        let cache = Cache::fixed([object]);
        let kept = cache.list()[0].metadata.managed_fields.clone().unwrap();
        let kept: Vec<_> = kept.iter().map(|entry| entry.manager.as_deref().unwrap()).collect();
        assert_eq!(kept, ["drover/init/cluster", "drover/capi/machine"]);
    }

    /// Never ends a pass.
    struct Stuck;

    impl crate::Reconciler for Stuck {
        const NAME: &'static str = "stuck";

        async fn reconcile(&self, _: ObjectKey) -> Result<crate::Next, crate::Error> {
            std::future::pending().await
        }
    }

    struct Quick(Arc<Mutex<BTreeSet<String>>>);

    impl crate::Reconciler for Quick {
        const NAME: &'static str = "quick";

        async fn reconcile(&self, key: ObjectKey) -> Result<crate::Next, crate::Error> {
            self.0.lock().insert(key.name);
            Ok(crate::Next::EVENT)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_is_stuck_delays_no_other() {
        let cache = Cache::fixed([config_map("m0", 1, "one")]);
        let (stop, seen) = (CancellationToken::new(), Arc::new(Mutex::new(BTreeSet::new())));
        let stuck = crate::Controller::new(Stuck).concurrency(1).reconciles(&cache);
        let stuck = tokio::spawn(stuck.run(stop.clone()));
        let quick = crate::Controller::new(Quick(seen.clone())).reconciles(&cache);
        let quick = tokio::spawn(quick.run(stop.clone()));
        for number in 1..100 {
            cache.upsert(config_map(&format!("m{number}"), 1 + number, "one"));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(seen.lock().len(), 100);
        stop.cancel();
        quick.await.unwrap();
        stuck.abort();
    }
}
