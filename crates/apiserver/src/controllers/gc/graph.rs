//! Owners and dependents according to the commit log: determines which objects must be checked after a change.
//!
//! Contains only objects with owners, and owners that wait for their dependents.

use crate::storage::{Key, Meta};
use std::collections::{BTreeSet, HashMap};

/// Finalizer of an owner that is deleted after its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are orphaned first.
pub(crate) const ORPHAN: &str = "orphan";

/// The index.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// Owner uid → objects that refer to it.
    dependents: HashMap<Box<str>, BTreeSet<Key>>,
    /// Object → the owner uids it refers to.
    owners: HashMap<Key, Box<[Box<str>]>>,
    /// Uid of an owner that is being deleted and waits for its dependents → the owner.
    waiting: HashMap<Box<str>, Key>,
}

/// An object to check.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Check whether this object still has an owner.
    Dependent(Key),
    /// Check whether this owner, which waits for its dependents, can be deleted.
    Owner(Key),
}

impl Graph {
    /// An object was added or changed.
    pub(crate) fn put(&mut self, key: &Key, meta: &Meta) -> Vec<Work> {
        let uids: Box<[Box<str>]> = meta.owner_references.iter().map(|o| o.uid.clone()).collect();
        let mut work = Vec::new();
        let known = self.owners.get(key);
        if known.is_none_or(|old| *old != uids) && !(known.is_none() && uids.is_empty()) {
            work.extend(self.unlink(key));
            for uid in &uids {
                self.dependents.entry(uid.clone()).or_default().insert(key.clone());
            }
            if !uids.is_empty() {
                self.owners.insert(key.clone(), uids.clone());
            }
        }
        if !uids.is_empty() {
            work.push(Work::Dependent(key.clone()));
            // It may no longer block an owner to which it still refers.
            work.extend(self.waiting_owners(&uids));
        }
        if waits_for_dependents(meta) {
            if self.waiting.insert(meta.uid.clone(), key.clone()).is_none() {
                work.extend(self.of(&meta.uid).map(Work::Dependent));
            }
            work.push(Work::Owner(key.clone()));
        } else {
            self.waiting.remove(&meta.uid);
        }
        work
    }

    /// An object was deleted.
    pub(crate) fn remove(&mut self, key: &Key, meta: &Meta) -> Vec<Work> {
        let mut work = self.unlink(key);
        self.waiting.remove(&meta.uid);
        work.extend(self.of(&meta.uid).map(Work::Dependent));
        work
    }

    /// The objects that refer to this owner.
    pub(crate) fn of(&self, uid: &str) -> impl Iterator<Item = Key> + '_ {
        self.dependents.get(uid).into_iter().flatten().cloned()
    }

    /// Whether any object refers to this owner.
    pub(crate) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    /// Removes the object's owners; returns those that wait, because they may have waited for it.
    fn unlink(&mut self, key: &Key) -> Vec<Work> {
        let Some(uids) = self.owners.remove(key) else { return Vec::new() };
        for uid in &uids {
            if let Some(set) = self.dependents.get_mut(uid) {
                set.remove(key);
                if set.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
        self.waiting_owners(&uids)
    }

    fn waiting_owners(&self, uids: &[Box<str>]) -> Vec<Work> {
        uids.iter().filter_map(|u| self.waiting.get(u)).cloned().map(Work::Owner).collect()
    }
}

/// Whether an object is being deleted after its dependents.
pub(crate) fn waits_for_dependents(meta: &Meta) -> bool {
    meta.deletion_timestamp.is_some() && meta.finalizers.iter().any(|f| **f == *FOREGROUND || **f == *ORPHAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(name: &str) -> Key {
        Key::new("", "configmaps", "ns", name)
    }

    fn meta(uid: &str, owners: &[&str], waiting: bool) -> Meta {
        let owners: Vec<_> =
            owners.iter().map(|o| json!({"uid": o, "name": o, "kind": "ConfigMap"})).collect();
        let mut value = json!({"name": uid, "uid": uid, "ownerReferences": owners});
        if waiting {
            value["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            value["finalizers"] = json!([FOREGROUND]);
        }
        serde_json::from_value(value).unwrap()
    }

    fn dep(name: &str) -> Work {
        Work::Dependent(key(name))
    }

    #[test]
    fn removing_an_owner_checks_only_its_dependents() {
        let mut g = Graph::default();
        assert!(g.put(&key("owner"), &meta("o", &[], false)).is_empty(), "no owners, nothing to do");
        assert_eq!(g.put(&key("a"), &meta("a", &["o"], false)), [dep("a")]);
        assert_eq!(g.put(&key("b"), &meta("b", &["o", "p"], false)), [dep("b")]);
        assert_eq!(g.put(&key("c"), &meta("c", &["p"], false)), [dep("c")]);
        assert_eq!(g.remove(&key("owner"), &meta("o", &[], false)), [dep("a"), dep("b")]);
        assert_eq!(g.remove(&key("a"), &meta("a", &["o"], false)), []);
        assert_eq!(g.of("o").collect::<Vec<_>>(), [key("b")]);
        g.put(&key("b"), &meta("b", &["p"], false));
        assert!(!g.has_dependents("o"));
    }

    #[test]
    fn a_waiting_owner_and_its_dependents_trigger_checks_of_each_other() {
        let mut g = Graph::default();
        g.put(&key("a"), &meta("a", &["o"], false));
        let work = g.put(&key("owner"), &meta("o", &[], true));
        assert_eq!(work, [dep("a"), Work::Owner(key("owner"))]);
        assert!(g.waiting.contains_key("o"));
        assert_eq!(g.remove(&key("a"), &meta("a", &["o"], false)), [Work::Owner(key("owner"))]);
        g.remove(&key("owner"), &meta("o", &[], true));
        assert!(g.waiting.is_empty());
    }

    #[test]
    fn the_graph_is_empty_after_all_objects_are_removed() {
        let mut g = Graph::default();
        for (name, owner) in [("a", "b"), ("b", "a")] {
            g.put(&key(name), &meta(name, &[owner], true));
        }
        for name in ["a", "b"] {
            g.remove(&key(name), &meta(name, &[], false));
        }
        assert!(g.dependents.is_empty() && g.owners.is_empty() && g.waiting.is_empty());
    }
}
