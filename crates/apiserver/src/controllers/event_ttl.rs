//! Deletes events an hour after their last write.

use super::follow::{Change, Follower, Topics};
use crate::objects::{DeleteOptions, Objects, WriteContext};
use crate::storage::{Key, Version};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Expiry times are rounded up to this many seconds, so that a burst of events is deleted in one batch.
const ROUNDING_SECONDS: i64 = 10;
const PARALLEL: usize = 64;

/// Deletes events `ttl` after their last write until the task is dropped.
pub(super) async fn run(objects: Objects, ttl: SignedDuration) {
    let context = WriteContext::internal("event-ttl");
    let mut follower = Follower::new(objects.storage().clone(), Topics::Some(&[("", "events")]));
    let mut queue = Queue::default();
    // Versions that exist at the start were written earlier; later ones are written now.
    let mut restored = true;
    loop {
        let now = objects.clock().now();
        let wait =
            queue.first().map(|at| Duration::from_secs(u64::try_from(at - now.as_second()).unwrap_or(0)));
        tokio::select! {
            changes = follower.next() => {
                // The current time, not that at which the wait began.
                let now = objects.clock().now();
                for change in changes {
                    match change {
                        Change::Reset => queue = Queue::default(),
                        Change::Present(version) => {
                            let written = if restored { last_seen(&version).unwrap_or(now) } else { now };
                            let expiry = written.checked_add(ttl).unwrap_or(now).as_second();
                            queue.put(version.key().clone(), version.revision(), expiry);
                        }
                        Change::Gone(version) => queue.remove(version.key()),
                    }
                }
                restored = false;
            }
            () = sleep(wait) => {
                let due = queue.take_due(objects.clock().now().as_second());
                delete(&objects, &context, due).await;
            }
        }
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

async fn delete(objects: &Objects, context: &WriteContext, due: Vec<(Key, u64)>) {
    let Some(events) = objects.resources().resource("", "v1", "events") else { return };
    let deletes = due.into_iter().map(|(key, revision)| {
        let events = events.clone();
        async move {
            let options =
                DeleteOptions { resource_version: Some(revision.to_string()), ..DeleteOptions::default() };
            let result = objects.delete(context, &events, key.namespace(), key.name(), &options).await;
            if let Err(error) = result
                && !error.is_not_found()
                && !error.is_conflict()
            {
                // The event is kept until it is written again or the server restarts, which is harmless.
                tracing::warn!(%key, %error, "failed to delete an expired event");
            }
        }
    });
    futures::stream::iter(deletes).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
}

/// The time of the last write of an event from before the start, as recorded in the event.
fn last_seen(version: &Version) -> Option<Timestamp> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Event {
        #[serde(default)]
        last_timestamp: Option<Timestamp>,
        #[serde(default)]
        event_time: Option<Timestamp>,
        #[serde(default)]
        series: Option<Series>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Series {
        #[serde(default)]
        last_observed_time: Option<Timestamp>,
    }
    let created = version.meta().creation_timestamp.as_deref().and_then(|t| t.parse().ok());
    let event: Option<Event> = serde_json::from_slice(&version.bytes()).ok();
    let recorded = event.into_iter().flat_map(|e| {
        [e.last_timestamp, e.event_time, e.series.and_then(|s| s.last_observed_time)].into_iter().flatten()
    });
    recorded.chain(created).max()
}

/// Events ordered by expiry.
#[derive(Debug, Default)]
struct Queue {
    due: BTreeMap<i64, HashMap<Key, u64>>,
    at: HashMap<Key, i64>,
}

impl Queue {
    fn put(&mut self, key: Key, revision: u64, expiry: i64) {
        self.remove(&key);
        let at = (expiry + ROUNDING_SECONDS - 1).div_euclid(ROUNDING_SECONDS) * ROUNDING_SECONDS;
        self.due.entry(at).or_default().insert(key.clone(), revision);
        self.at.insert(key, at);
    }

    fn remove(&mut self, key: &Key) {
        let Some(at) = self.at.remove(key) else { return };
        if let Some(keys) = self.due.get_mut(&at) {
            keys.remove(key);
            if keys.is_empty() {
                self.due.remove(&at);
            }
        }
    }

    fn first(&self) -> Option<i64> {
        self.due.first_key_value().map(|(at, _)| *at)
    }

    fn take_due(&mut self, now: i64) -> Vec<(Key, u64)> {
        let later = self.due.split_off(&(now + 1));
        let due: Vec<(Key, u64)> = std::mem::replace(&mut self.due, later).into_values().flatten().collect();
        for (key, _) in &due {
            self.at.remove(key);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_extends_the_expiry_and_bursts_share_one() {
        let key = |n: &str| Key::new("", "events", "ns", n);
        let mut q = Queue::default();
        q.put(key("a"), 1, 101);
        q.put(key("b"), 2, 109);
        q.put(key("c"), 3, 111);
        assert_eq!(q.first(), Some(110));
        q.put(key("a"), 4, 200);
        assert_eq!(q.take_due(110), [(key("b"), 2)]);
        q.remove(&key("c"));
        assert_eq!(q.first(), Some(200));
        assert_eq!(q.take_due(199), []);
        assert_eq!(q.take_due(200), [(key("a"), 4)]);
        assert!(q.at.is_empty() && q.due.is_empty());
    }
}
