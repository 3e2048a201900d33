//! A write that changes only the times of entries is not a change.

use serde_json::Value;

use super::entry::{list_of, set_list};

/// If `new` differs from `live` only in the times of managedFields entries, restores the times of `live`, so that the
/// object is not written. Must be called last, when the object is complete.
pub fn keep_unchanged_timestamps(live: &Value, new: &mut Value) {
    let (Some(Value::Array(old)), Some(Value::Array(now))) = (list_of(live), list_of(new)) else { return };
    let only_time_differs =
        old.len() == now.len() && old.iter().zip(now).all(|(old, now)| same_but(old, now, "time"));
    if only_time_differs && old != now && equal_but_managed_fields(live, new) {
        set_list(new, list_of(live).cloned());
    }
}

fn equal_but_managed_fields(left: &Value, right: &Value) -> bool {
    let (Value::Object(left), Value::Object(right)) = (left, right) else { return false };
    left.len() == right.len()
        && left.iter().all(|(key, l)| match right.get(key) {
            Some(r) if key == "metadata" => same_but(l, r, "managedFields"),
            Some(r) => l == r,
            None => false,
        })
}

/// Equal except for one key.
fn same_but(left: &Value, right: &Value, except: &str) -> bool {
    let (Value::Object(left), Value::Object(right)) = (left, right) else { return left == right };
    let one_sided = |one: &serde_json::Map<String, Value>, other: &serde_json::Map<String, Value>| {
        one.iter().all(|(key, value)| key == except || other.get(key) == Some(value))
    };
    one_sided(left, right) && one_sided(right, left)
}
