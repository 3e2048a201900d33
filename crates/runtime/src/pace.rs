//! Defers writes of a status in which only text has changed.
//!
//! While a cluster is created, the messages of its conditions change many times a second, and each write wakes every
//! controller that watches the object. A change of only text is therefore written at most once per [`WINDOW`] and
//! object; any other change is written at once. A pass that defers a write is repeated when the write is due, so the
//! last text is always stored.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

/// Minimum interval between writes of only text to one object's status.
pub const WINDOW: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// When the running pass must be repeated because it deferred a write.
    static DEFERRED: Cell<Option<Duration>>;
}

/// Runs one pass of a controller; also returns after which time it must be repeated because it deferred a write.
pub(crate) async fn pass<F: Future>(pass: F) -> (F::Output, Option<Duration>) {
    DEFERRED
        .scope(Cell::new(None), async {
            let output = pass.await;
            (output, DEFERRED.with(Cell::get))
        })
        .await
}

/// When a writer last wrote each object. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Pace {
    written: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Pace {
    /// Records a write of the object with this uid.
    pub(crate) fn wrote(&self, uid: &str) {
        let now = Instant::now();
        let mut written = self.written.lock();
        if written.len() == written.capacity() {
            written.retain(|_, at| now.duration_since(*at) < WINDOW);
        }
        written.insert(uid.to_owned(), now);
    }

    /// Defers a write of the object with this uid if the last one was less than [`WINDOW`] ago. Outside of a
    /// controller's pass, which would repeat it, nothing is deferred.
    pub(crate) fn defer(&self, uid: &str) -> bool {
        let Some(elapsed) = self.written.lock().get(uid).map(Instant::elapsed) else { return false };
        let Some(rest) = WINDOW.checked_sub(elapsed).filter(|rest| !rest.is_zero()) else { return false };
        let sooner = |deferred: &Cell<Option<Duration>>| {
            deferred.set(Some(deferred.get().map_or(rest, |other| other.min(rest))));
        };
        DEFERRED.try_with(sooner).is_ok()
    }
}

/// `desired` with the text of `live` where they differ only in text: messages and update times of conditions (matched
/// by `type`), and of waits for the same objects.
pub(crate) fn with_text_of(mut desired: Value, live: &Value) -> Value {
    if let (Some(desired), Some(live)) = (desired.get_mut("status"), live.get("status")) {
        take_text(desired, live);
    }
    desired
}

fn take_text(desired: &mut Value, live: &Value) {
    let (Value::Object(desired), Value::Object(live)) = (desired, live) else { return };
    for (key, value) in desired {
        match (key.as_str(), value, live.get(key)) {
            ("conditions", Value::Array(desired), Some(Value::Array(live))) => {
                for condition in desired {
                    let same = |other: &&Value| other.get("type") == condition.get("type");
                    if let Some(live) = live.iter().find(same) {
                        take_fields(condition, live, &["message", "lastUpdateTime"]);
                    }
                }
            }
            ("waits", value @ Value::Array(_), Some(live)) if are_same_waits(value, live) => {
                *value = live.clone();
            }
            (_, value, Some(live)) => take_text(value, live),
            _ => {}
        }
    }
}

fn take_fields(target: &mut Value, source: &Value, names: &[&str]) {
    for name in names {
        if let (Some(target), Some(source)) = (target.get_mut(*name), source.get(*name)) {
            *target = source.clone();
        }
    }
}

fn are_same_waits(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_array(), b.as_array()) else { return false };
    let same = |(a, b): (&Value, &Value)| a["reason"] == b["reason"] && a["object"] == b["object"];
    a.len() == b.len() && a.iter().zip(b).all(same)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_text_is_taken_from_the_live_object() {
        let live = json!({"status": {
            "replicas": 1,
            "conditions": [{"type": "Ready", "status": "False", "message": "old", "lastUpdateTime": "1"}],
            "deprecated": {"v1beta1": {"conditions": [{"type": "Ready", "status": "False", "message": "old"}]}},
            "waits": [{"reason": "R", "object": {"name": "a"}, "message": "old"}],
        }});
        let desired = json!({"status": {
            "replicas": 2,
            "conditions": [
                {"type": "New", "status": "True", "message": "new"},
                {"type": "Ready", "status": "True", "message": "new", "lastUpdateTime": "2"},
            ],
            "deprecated": {"v1beta1": {"conditions": [{"type": "Ready", "status": "False", "message": "new"}]}},
            "waits": [{"reason": "R", "object": {"name": "a"}, "message": "new"}],
        }});
        let expected = json!({"status": {
            "replicas": 2,
            "conditions": [
                {"type": "New", "status": "True", "message": "new"},
                {"type": "Ready", "status": "True", "message": "old", "lastUpdateTime": "1"},
            ],
            "deprecated": {"v1beta1": {"conditions": [{"type": "Ready", "status": "False", "message": "old"}]}},
            "waits": [{"reason": "R", "object": {"name": "a"}, "message": "old"}],
        }});
        assert_eq!(with_text_of(desired, &live), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_deferred_within_the_window_and_its_pass_is_repeated() {
        let pace = Pace::default();
        let (deferred, again) = pass(async { pace.defer("a") }).await;
        assert_eq!((deferred, again), (false, None), "never written before");
        pace.wrote("a");
        tokio::time::advance(WINDOW / 4).await;
        assert!(!pace.defer("a"), "outside of a pass nothing would repeat it");
        let (deferred, again) = pass(async { (pace.defer("a"), pace.defer("b")) }).await;
        assert_eq!((deferred, again), ((true, false), Some(WINDOW * 3 / 4)));
        tokio::time::advance(WINDOW * 3 / 4).await;
        let (deferred, again) = pass(async { pace.defer("a") }).await;
        assert_eq!((deferred, again), (false, None));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_written_long_ago_are_forgotten() {
        let pace = Pace::default();
        for n in 0..10_000 {
            pace.wrote(&n.to_string());
            tokio::time::advance(WINDOW / 10).await;
        }
        assert!(pace.written.lock().len() < 100);
    }
}
