//! Waits until the cache contains a controller's own writes, so that no pass decides on an older state.

use std::collections::HashMap;
use std::time::Duration;

use kube::Resource;
use parking_lot::Mutex;

use crate::cache::{Cache, Cached};
use crate::error::Error;
use crate::key::ObjectKey;

/// How long a pass waits before it yields to others.
const CATCH_UP: Duration = Duration::from_secs(2);

/// By uid of the owner: the newest revision of a dependent that was written.
#[derive(Default)]
pub struct Expectations {
    newest: Mutex<HashMap<ObjectKey, (String, String)>>,
}

impl Expectations {
    /// Records a write for `owner`.
    pub fn expect(&self, owner: &impl Resource, revision: Option<String>) {
        let (Some(uid), Some(revision)) = (owner.meta().uid.clone(), revision) else { return };
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let mut newest = self.newest.lock();
        let known = newest.entry(ObjectKey::of(owner)).or_default();
        if known.0 != uid || number(&revision) >= number(&known.1) {
            *known = (uid, revision);
        }
    }

    /// Waits until `cache` contains the writes for `owner`; if it stays behind, the error leads to a retry.
    pub async fn met<K: Cached>(&self, owner: &impl Resource, cache: &Cache<K>) -> Result<(), Error> {
        let key = ObjectKey::of(owner);
        let Some((uid, revision)) = self.newest.lock().get(&key).cloned() else { return Ok(()) };
        if owner.meta().uid.as_ref() != Some(&uid) || cache.caught_up(&revision, CATCH_UP).await {
            let mut newest = self.newest.lock();
            // Another write may have been recorded in the meantime.
            if newest.get(&key).is_some_and(|known| known.1 == revision) {
                newest.remove(&key);
            }
            return Ok(());
        }
        Err(Error::Stale(format!("the dependents of {}", key.name)))
    }

    /// Forgets a deleted owner.
    pub fn forget(&self, owner: &ObjectKey) {
        self.newest.lock().remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    fn object(uid: &str, revision: u64) -> ConfigMap {
        let metadata =
            json!({"name": "a", "namespace": "ns", "uid": uid, "resourceVersion": revision.to_string()});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_waited_for_and_forgotten_and_a_deleted_owner_is_forgotten() {
        let (expected, cache) = (Expectations::default(), Cache::fixed([object("x", 7)]));
        let owner = object("x", 1);
        expected.expect(&owner, Some("9".into()));
        expected.expect(&owner, Some("7".into()));
        assert!(
            matches!(expected.met(&owner, &cache).await, Err(Error::Stale(_))),
            "revision 9 is not cached yet"
        );
        assert!(expected.met(&object("y", 1), &cache).await.is_ok(), "another object of the same name");
        assert!(expected.newest.lock().is_empty());
        expected.expect(&owner, Some("7".into()));
        assert!(expected.met(&owner, &cache).await.is_ok());
        assert!(expected.newest.lock().is_empty());
        expected.expect(&owner, Some("9".into()));
        expected.forget(&ObjectKey::new("ns", "a"));
        assert!(expected.newest.lock().is_empty());
    }
}
