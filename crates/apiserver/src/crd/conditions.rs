//! Conditions of a CRD.

use serde_json::{Value, json};

use crate::object::{ObjectExt, object_mut};

/// A condition to be set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Sets a condition; its transition time changes only with its status.
pub(super) fn set(crd: &mut Value, condition: Condition, now: &str) {
    let generation = crd["metadata"]["generation"].clone();
    let status = object_mut(object_mut(crd).entry("status").or_insert(Value::Null));
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Value::Array(list) = list else { return };
    let existing = list.iter_mut().find(|c| c.top_str("type") == condition.kind);
    let since = match &existing {
        Some(c) if c.top_str("status") == condition.status => c.top_str("lastTransitionTime").to_owned(),
        _ => now.to_owned(),
    };
    let mut fresh = json!({
        "type": condition.kind, "status": condition.status, "lastTransitionTime": since,
        "reason": condition.reason, "message": condition.message,
    });
    if !generation.is_null() {
        fresh["observedGeneration"] = generation;
    }
    match existing {
        // Does not write if only the generation changed: the write would increment the generation again, without end.
        Some(slot) if same_but_generation(slot, &fresh) => {}
        Some(slot) => *slot = fresh,
        None => list.push(fresh),
    }
}

fn same_but_generation(a: &Value, b: &Value) -> bool {
    ["status", "reason", "message"].iter().all(|field| a.top_str(field) == b.top_str(field))
}

/// Removes a condition.
pub(super) fn remove(crd: &mut Value, kind: &str) {
    if let Some(Value::Array(list)) = crd.get_mut("status").and_then(|s| s.get_mut("conditions")) {
        list.retain(|c| c.top_str("type") != kind);
    }
}

/// Whether a condition is True.
pub(super) fn is_true(crd: &Value, kind: &str) -> bool {
    let conditions = crd.get("status").and_then(|s| s.get("conditions")).and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c.top_str("type") == kind && c.top_str("status") == "True")
}
