//! Objects that a cache holds because others refer to them by name, with a watch for each, as the kubelet watches the
//! Secrets and ConfigMaps of its pods: people make these objects, so no selector finds them.

use std::collections::{BTreeSet, HashMap};

use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::follow::Watch;
use super::objects::NAMED;
use super::{Cache, Cached};
use crate::ObjectKey;

pub(super) struct Named<K> {
    client: Client,
    api: fn(Client, &str) -> Api<K>,
    tasks: TaskTracker,
    stop: CancellationToken,
    state: Mutex<State>,
    /// Held during a change of references, so that the end of a former watch does not remove what a later one delivered.
    changes: Mutex<()>,
}

#[derive(Default)]
struct State {
    by_owner: HashMap<String, BTreeSet<ObjectKey>>,
    watched: HashMap<ObjectKey, Watched>,
}

struct Watched {
    owners: usize,
    listed: bool,
    stop: CancellationToken,
}

impl<K: Cached> Named<K> {
    pub(super) fn new(
        client: Client,
        api: fn(Client, &str) -> Api<K>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self { client, api, tasks, stop, state: Mutex::default(), changes: Mutex::default() }
    }

    pub(super) fn refer(&self, cache: &Cache<K>, owner: &str, keys: BTreeSet<ObjectKey>) {
        let _change = self.changes.lock();
        let mut ended = Vec::new();
        {
            let mut state = self.state.lock();
            let former = if keys.is_empty() {
                state.by_owner.remove(owner).unwrap_or_default()
            } else {
                state.by_owner.insert(owner.to_owned(), keys.clone()).unwrap_or_default()
            };
            for key in keys.difference(&former) {
                match state.watched.get_mut(key) {
                    Some(watched) => watched.owners += 1,
                    None => {
                        let stop = self.watch(cache, key);
                        state.watched.insert(key.clone(), Watched { owners: 1, listed: false, stop });
                    }
                }
            }
            for key in former.difference(&keys) {
                let Some(watched) = state.watched.get_mut(key) else { continue };
                watched.owners -= 1;
                if watched.owners == 0 {
                    watched.stop.cancel();
                    state.watched.remove(key);
                    ended.push(key.clone());
                }
            }
        }
        // Subscribers are called without the lock.
        ended.iter().for_each(|key| cache.remove(key, NAMED));
    }

    fn watch(&self, cache: &Cache<K>, key: &ObjectKey) -> CancellationToken {
        let stop = self.stop.child_token();
        let api = (self.api)(self.client.clone(), &key.namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", key.name));
        let watch = Watch { source: NAMED, scope: Some(key.clone()) };
        self.tasks.spawn(cache.clone().follow(api, config, watch, stop.clone()));
        stop
    }

    pub(super) fn is_watched(&self, key: &ObjectKey) -> bool {
        self.state.lock().watched.contains_key(key)
    }

    pub(super) fn listed(&self, key: &ObjectKey) {
        if let Some(watched) = self.state.lock().watched.get_mut(key) {
            watched.listed = true;
        }
    }

    pub(super) fn is_listed(&self, key: &ObjectKey) -> bool {
        self.state.lock().watched.get(key).is_some_and(|watched| watched.listed)
    }
}
