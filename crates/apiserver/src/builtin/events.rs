//! `events.k8s.io/v1` uses the storage of core events: the same objects with other field names.

use futures::future::BoxFuture;
use serde_json::Value;

use crate::object::object_mut;
use crate::protobuf;
use crate::status::Status;
use crate::strategy::Strategy;

/// (core, events.k8s.io)
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// The strategy of `events.k8s.io/v1 Event`.
pub(super) struct NewEvents;

impl Strategy for NewEvents {
    fn check_types(&self, object: &Value) -> Result<(), String> {
        protobuf::check_types(object)
    }

    fn prune(&self, object: &mut Value) -> Vec<String> {
        protobuf::prune(object)
    }

    fn to_storage<'a>(&'a self, mut object: Value) -> BoxFuture<'a, Result<Value, Status>> {
        rename(&mut object, |(core, new)| (new, core));
        Box::pin(async move { Ok(object) })
    }

    fn from_storage<'a>(&'a self, mut objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        objects.iter_mut().for_each(|object| rename(object, |names| names));
        Box::pin(async move { Ok(objects) })
    }
}

fn rename(object: &mut Value, order: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let fields = object_mut(object);
    for (from, to) in NAMES.map(order) {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}
