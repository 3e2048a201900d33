//! What a cache holds: objects by key, the watches that each came by, and indexes over them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kube::Resource;

use super::Cached;
use crate::ObjectKey;

/// The watches of one cache as bits: a label or field selector has a bit each, all watches of single objects share one.
pub(super) type Sources = u16;

/// The bit of watches of single objects.
pub(super) const NAMED: Sources = 1 << 15;

pub(super) type IndexFn<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

pub(super) struct Objects<K> {
    by_key: HashMap<ObjectKey, Held<K>>,
    indexes: HashMap<&'static str, Index<K>>,
}

struct Held<K> {
    object: Arc<K>,
    /// An object that several watches deliver is kept until it has left all of them.
    sources: Sources,
}

struct Index<K> {
    values: IndexFn<K>,
    keys: HashMap<String, BTreeSet<ObjectKey>>,
}

/// What came of an insertion.
pub(super) enum Inserted<K> {
    /// The same version, or a newer one, was held already.
    Known,
    /// The version that was held before, if any.
    Changed(Option<Arc<K>>),
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), indexes: HashMap::new() }
    }
}

impl<K: Cached> Objects<K> {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.by_key.get(key).map(|held| &held.object)
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<K>)> {
        self.by_key.iter().map(|(key, held)| (key, &held.object))
    }

    /// The objects that a watch delivered.
    pub(super) fn of_source(&self, source: Sources) -> impl Iterator<Item = &ObjectKey> {
        self.by_key.iter().filter(move |(_, held)| held.sources & source != 0).map(|(key, _)| key)
    }

    pub(super) fn index(&mut self, name: &'static str, values: IndexFn<K>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { values, keys: HashMap::new() };
        for (key, held) in &self.by_key {
            index.insert(key, &held.object);
        }
        self.indexes.insert(name, index);
    }

    pub(super) fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let keys = self.indexes.get(name).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| self.get(key).cloned()).collect()
    }

    pub(super) fn insert(&mut self, key: &ObjectKey, object: &Arc<K>, source: Sources) -> Inserted<K> {
        let mut sources = source;
        if let Some(held) = self.by_key.get_mut(key) {
            held.sources |= source;
            sources = held.sources;
            // Two watches of one object may be at different revisions.
            let late = sources != source
                && held.object.meta().uid == object.meta().uid
                && revision_of(held.object.as_ref()) > revision_of(object.as_ref());
            if late || held.object.meta().resource_version == object.meta().resource_version {
                return Inserted::Known;
            }
        }
        let old = self.by_key.insert(key.clone(), Held { object: object.clone(), sources });
        let old = old.map(|held| held.object);
        for index in self.indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(key, old);
            }
            index.insert(key, object);
        }
        Inserted::Changed(old)
    }

    /// Forgets that a watch delivered the object; returns it if no other watch holds it.
    pub(super) fn remove(&mut self, key: &ObjectKey, source: Sources) -> Option<Arc<K>> {
        let held = self.by_key.get_mut(key)?;
        held.sources &= !source;
        if held.sources != 0 {
            return None;
        }
        let old = self.by_key.remove(key)?.object;
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

pub(super) fn revision_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|rv| rv.parse().ok()).unwrap_or(0)
}
