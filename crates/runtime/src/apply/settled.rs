//! What one writer is known to have applied to which version of an object.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash as _, Hasher, RandomState};
use std::io;

use kube::Resource;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

/// Remembered objects. When there are more, all are forgotten, and each is compared once again.
const REMEMBERED: usize = 1 << 16;

/// Per object, the version that already holds what the writer wants, and a hash of what that is.
///
/// An answer of the API to an apply is such a version, and so is one that a comparison found unchanged. Nothing has to be
/// compared as long as neither of the two changes.
#[derive(Default)]
pub(super) struct Settled {
    hashes: RandomState,
    known: Mutex<HashMap<u64, (u64, u64)>>,
}

/// One version of one object.
pub(super) struct Version<'a> {
    pub(super) uid: &'a str,
    revision: &'a str,
}

impl<'a> Version<'a> {
    pub(super) fn of<K: Resource>(object: &'a K) -> Self {
        let meta = object.meta();
        Self {
            uid: meta.uid.as_deref().unwrap_or_default(),
            revision: meta.resource_version.as_deref().unwrap_or_default(),
        }
    }

    fn is_known(&self) -> bool {
        !self.uid.is_empty() && !self.revision.is_empty()
    }
}

impl Settled {
    /// The hash of what a writer wants.
    pub(super) fn fingerprint(
        &self,
        desired: &impl Serialize,
        subresource: Option<&str>,
    ) -> Result<u64, serde_json::Error> {
        let mut hash = Writer(self.hashes.build_hasher());
        hash.0.write(subresource.unwrap_or_default().as_bytes());
        serde_json::to_writer(&mut hash, desired)?;
        Ok(hash.0.finish())
    }

    /// A hash of a state, whatever the times in it: as long as a state is not written, every pass sets new ones.
    pub(super) fn state(&self, desired: &Value) -> u64 {
        let mut hash = self.hashes.build_hasher();
        hash_state(desired, &mut hash);
        hash.finish()
    }

    pub(super) fn holds(&self, version: &Version<'_>, wanted: u64) -> bool {
        let revision = self.hashes.hash_one(version.revision);
        version.is_known()
            && self.known.lock().get(&self.hashes.hash_one(version.uid)) == Some(&(revision, wanted))
    }

    pub(super) fn note(&self, version: &Version<'_>, wanted: u64) {
        if !version.is_known() {
            return;
        }
        let (key, revision) = (self.hashes.hash_one(version.uid), self.hashes.hash_one(version.revision));
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED && !known.contains_key(&key) {
            known.clear();
        }
        known.insert(key, (revision, wanted));
    }
}

fn hash_state(value: &Value, hash: &mut impl Hasher) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if !["lastTransitionTime", "lastUpdateTime", "since"].contains(&key.as_str()) {
                    key.hash(hash);
                    hash_state(value, hash);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| hash_state(item, hash)),
        scalar => scalar.hash(hash),
    }
}

struct Writer<H>(H);

impl<H: Hasher> io::Write for Writer<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_is_settled_while_neither_it_nor_what_is_wanted_changes() {
        let settled = Settled::default();
        let hash = |value| settled.fingerprint(&value, None).unwrap();
        let (one, other) = (hash(json!({"a": 1})), hash(json!({"a": 2})));
        assert_eq!((one, one == other), (hash(json!({"a": 1})), false));
        assert_ne!(one, settled.fingerprint(&json!({"a": 1}), Some("status")).unwrap());
        let version = |revision| Version { uid: "u", revision };
        assert!(!settled.holds(&version("1"), one));
        settled.note(&version("1"), one);
        assert!(settled.holds(&version("1"), one));
        assert!(!settled.holds(&version("1"), other) && !settled.holds(&version("2"), one));
        settled.note(&version("2"), other);
        assert!(settled.holds(&version("2"), other) && !settled.holds(&version("1"), one));
        settled.note(&Version { uid: "", revision: "1" }, one);
        assert!(!settled.holds(&Version { uid: "", revision: "1" }, one), "not stored yet");
    }

    #[test]
    fn times_do_not_change_a_state() {
        let settled = Settled::default();
        let state = |message: &str, time: &str| {
            settled.state(&json!({"conditions": [{"message": message, "lastTransitionTime": time}]}))
        };
        assert_eq!(state("a", "1"), state("a", "2"));
        assert_ne!(state("a", "1"), state("b", "1"));
    }

    #[test]
    fn the_memory_is_bounded() {
        let settled = Settled::default();
        for number in 0..REMEMBERED + 10 {
            settled.note(&Version { uid: &number.to_string(), revision: "1" }, 1);
        }
        assert!(settled.known.lock().len() <= 10);
    }
}
