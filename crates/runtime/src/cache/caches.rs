//! All caches of the process: one per kind and selectors, started when it is first asked for.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::follow::Watch;
use super::named::Named;
use super::objects::Sources;
use super::{Cache, Cached};
use crate::{Metrics, vital};

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
    selectors: Vec<Selector>,
}

struct Running {
    cache: Box<dyn Any + Send + Sync>,
    size: Box<dyn Fn() -> usize + Send + Sync>,
    stop: CancellationToken,
}

/// Which objects of a kind a watch delivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl Selector {
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), fields: None }
    }

    pub fn fields(selector: impl Into<String>) -> Self {
        Self { labels: None, fields: Some(selector.into()) }
    }
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
        self.start(resource_of::<K>(), vec![selector], |_| {}, all_of, None)
    }

    /// The cache of the objects that any of the selectors matches, and of those that others [refer to](Cache::refer).
    /// Selectors that exclude each other save the API work. `trim` removes what is not kept of each object.
    pub fn select_any<K>(&self, selectors: Vec<Selector>, trim: fn(&mut K)) -> Cache<K>
    where
        K: Cached + Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        self.start(resource_of::<K>(), selectors, trim, all_of, Some(Api::namespaced))
    }

    /// The cache of all objects of a kind, without what `trim` removes from each. The first caller's `trim` counts.
    pub fn trimmed<K: Cached>(&self, trim: fn(&mut K)) -> Cache<K>
    where
        K::DynamicType: Default,
    {
        self.start(resource_of::<K>(), vec![Selector::default()], trim, all_of, None)
    }

    /// The cache of a kind that exists only at run time. Ask for it once its CRD is Established.
    pub fn dynamic(&self, resource: &ApiResource) -> Cache<DynamicObject> {
        let api = |client| Api::all_with(client, resource);
        self.start(dynamic_name(resource), vec![Selector::default()], |_| {}, api, None)
    }

    /// Ends the cache of a run-time kind, for instance because its CRD is gone.
    pub fn end_dynamic(&self, resource: &ApiResource) {
        let id = CacheId {
            type_: TypeId::of::<DynamicObject>(),
            resource: dynamic_name(resource),
            selectors: vec![Selector::default()],
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
        selectors: Vec<Selector>,
        trim: fn(&mut K),
        api: impl Fn(Client) -> Api<K>,
        named: Option<fn(Client, &str) -> Api<K>>,
    ) -> Cache<K> {
        let id = CacheId { type_: TypeId::of::<K>(), resource, selectors };
        let mut running = self.running.lock();
        if let Some(cache) = running.get(&id).and_then(|r| r.cache.downcast_ref::<Cache<K>>()) {
            return cache.clone();
        }
        let stop = self.stop.child_token();
        let all: Sources = id.selectors.iter().enumerate().fold(0, |all, (at, _)| all | (1 << at));
        let mut inner = Cache::<K>::empty(all, self.metrics.clone(), trim);
        if let Some(metrics) = &self.metrics {
            inner.lists = metrics.lists(group_resource(&id.resource));
        }
        inner.named = named.map(|api| Named::new(self.client.clone(), api, self.tasks.clone(), stop.clone()));
        let cache = Cache::of(inner);
        for (at, selector) in id.selectors.iter().enumerate() {
            let config = watcher::Config {
                label_selector: selector.labels.clone(),
                field_selector: selector.fields.clone(),
                ..watcher::Config::default()
            };
            let watch = Watch { source: 1 << at, scope: None };
            let follow = cache.clone().follow(api(self.client.clone()), config, watch, stop.clone());
            self.tasks.spawn(vital(follow, self.stop.clone()));
        }
        let counted = cache.clone();
        let size = Box::new(move || counted.inner.objects.read().len());
        running.insert(id, Running { cache: Box::new(cache.clone()), size, stop });
        cache
    }
}

fn all_of<K: Cached>(client: Client) -> Api<K>
where
    K::DynamicType: Default,
{
    Api::all_with(client, &K::DynamicType::default())
}

fn resource_of<K: Cached>() -> String
where
    K::DynamicType: Default,
{
    let kind = K::DynamicType::default();
    format!("{}/{}", K::api_version(&kind), K::plural(&kind))
}

fn dynamic_name(resource: &ApiResource) -> String {
    format!("{}/{}", resource.api_version, resource.plural)
}

/// `machines.cluster.x-k8s.io` for `cluster.x-k8s.io/v1beta2/machines`, as Kubernetes' own metrics name resources.
pub(super) fn group_resource(resource: &str) -> String {
    let mut parts = resource.rsplit('/');
    let (plural, group) = (parts.next().unwrap_or_default(), parts.nth(1));
    group.map_or_else(|| plural.to_owned(), |group| format!("{plural}.{group}"))
}
