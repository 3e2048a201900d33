//! The directives in patches.

use serde_json::Value;

use super::{Entries, Merged, StrategicError};

pub(super) const DIRECTIVE: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const SET_ORDER: &str = "$setElementOrder";
pub(super) const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";

/// `$patch` in a map: replaces the map by the rest of the patch, or empties it.
pub(super) fn on_map(directive: Value, mut patch: Entries) -> Merged<Entries> {
    match directive.as_str() {
        Some("replace") => {
            patch.remove(DIRECTIVE);
            Ok(patch)
        }
        Some("delete") => Ok(Entries::new()),
        _ => Err(unknown(&directive)),
    }
}

pub(super) fn unknown(directive: &Value) -> StrategicError {
    StrategicError::format(format!("unknown patch type: {directive}"))
}

/// `$retainKeys`: removes all other keys of the map. It must include all keys that the patch sets.
pub(super) fn retain_keys(current: &mut Entries, patch: &mut Entries) -> Merged<()> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let bad = || StrategicError::unprocessable("invalid patch format of retainKeys");
    let Value::Array(retained) = retained else { return Err(bad()) };
    let keep = |key: &str| retained.iter().any(|name| name.as_str() == Some(key));
    let is_directive = |key: &str| key.starts_with(DELETE_FROM_LIST) || key.starts_with(SET_ORDER);
    if patch.iter().any(|(key, value)| !value.is_null() && !is_directive(key) && !keep(key)) {
        return Err(bad());
    }
    current.retain(|key, _| keep(key));
    Ok(())
}

/// Returns a value to add to the object: without nulls in maps and without directives. `None` if the value itself is a
/// directive.
pub(super) fn clean(value: Value) -> Option<Value> {
    match value {
        Value::Object(entries) if entries.contains_key(DIRECTIVE) => None,
        Value::Object(entries) => {
            let is_directive = |key: &str| {
                key == RETAIN_KEYS || key.starts_with(DELETE_FROM_LIST) || key.starts_with(SET_ORDER)
            };
            let kept = entries.into_iter().filter(|(key, value)| !value.is_null() && !is_directive(key));
            Some(Value::Object(kept.filter_map(|(key, value)| Some((key, clean(value)?))).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(clean).collect())),
        scalar => Some(scalar),
    }
}
