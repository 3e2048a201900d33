//! Setting fields of objects that came from anyone and may have any shape.

use crate::object::object_mut;
use serde_json::Value;

/// Sets the field at a path; whatever is no object on the way is replaced by one.
pub(crate) fn put(object: &mut Value, path: &[&str], to: impl Into<Value>) {
    let slot = path
        .iter()
        .fold(object, |value, key| object_mut(value).entry((*key).to_owned()).or_insert(Value::Null));
    *slot = to.into();
}
