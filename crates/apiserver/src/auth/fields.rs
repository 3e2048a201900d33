//! Sets fields of objects from clients, which may have any shape.

use crate::object::object_mut;
use serde_json::Value;

/// Sets the field at a path; replaces values that are not objects on the way.
pub(crate) fn put(object: &mut Value, path: &[&str], to: impl Into<Value>) {
    let slot = path
        .iter()
        .fold(object, |value, key| object_mut(value).entry((*key).to_owned()).or_insert(Value::Null));
    *slot = to.into();
}
