//! Waits for our own writes to come back through the cache, so that no pass decides on a past it has itself changed.

use std::collections::HashMap;
use std::time::Duration;

use kube::Resource;
use parking_lot::Mutex;

use crate::cache::{Cache, Cached};
use crate::error::Error;

/// How long a pass waits before it gives way to others.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Per owner (by uid): the newest revision of a dependent that we wrote.
#[derive(Default)]
pub struct Expectations {
    newest: Mutex<HashMap<String, String>>,
}

impl Expectations {
    /// Remembers a write on behalf of `owner`.
    pub fn expect(&self, owner: &impl Resource, revision: Option<String>) {
        let (Some(uid), Some(revision)) = (owner.meta().uid.clone(), revision) else { return };
        let mut newest = self.newest.lock();
        let known = newest.entry(uid).or_default();
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        if number(&revision) >= number(known) {
            *known = revision;
        }
    }

    /// Waits until `cache` shows what was written on behalf of `owner`; a cache that stays behind is an error that is
    /// tried again.
    pub async fn met<K: Cached>(&self, owner: &impl Resource, cache: &Cache<K>) -> Result<(), Error> {
        let uid = owner.meta().uid.clone().unwrap_or_default();
        let Some(revision) = self.newest.lock().get(&uid).cloned() else { return Ok(()) };
        if cache.caught_up(&revision, CATCH_UP).await {
            self.newest.lock().remove(&uid);
            return Ok(());
        }
        let name = owner.meta().name.clone().unwrap_or_default();
        Err(Error::Stale(format!("what {name} owns")))
    }
}
