//! The migration from kubectl's client-side apply to server-side apply without conflicts.

use serde_json::Value;

use super::{Conflicts, FieldManager};
use crate::fieldpath::Set;
use crate::typed::{Duplicates, compare, to_field_set, validate};

/// The annotation in which client-side apply stores the last applied configuration.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The only field manager that is migrated; others opt out by their name.
pub(super) const KUBECTL: &str = "kubectl";
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The fields in the annotation whose values kubectl set and that are still unchanged.
pub(super) fn allowed_conflicts(manager: &FieldManager<'_>, live: &Value) -> Option<Set> {
    let ty = manager.versions.type_at(manager.api_version)?;
    let applied: Value = serde_json::from_str(annotation(live)?).ok()?;
    if applied.get("apiVersion").and_then(Value::as_str) != Some(manager.api_version) {
        return None;
    }
    validate(ty, live, Duplicates::Reject).ok()?;
    validate(ty, &applied, Duplicates::Reject).ok()?;
    let fields = to_field_set(ty, &applied);
    let differs = compare(ty, &applied, live).ok()?;
    Some(fields.difference(&differs.modified).difference(&differs.added).difference(&differs.removed))
}

/// Succeeds if all conflicts are allowed, otherwise returns the others.
pub(super) fn check(conflicts: Conflicts, allowed: Option<&Set>) -> Result<(), Conflicts> {
    let Some(allowed) = allowed else { return Err(conflicts) };
    let left: Vec<_> = conflicts.0.into_iter().filter(|conflict| !allowed.has(&conflict.path)).collect();
    if left.is_empty() { Ok(()) } else { Err(Conflicts(left)) }
}

/// Whether an object carries the annotation.
pub(super) fn has(object: &Value) -> bool {
    annotation(object).is_some()
}

/// Updates the annotation to the applied configuration, unless it would become too large.
pub(super) fn set(object: &mut Value, config: &Value) {
    let mut config = config.clone();
    if let Some(Value::Object(metadata)) = config.get_mut("metadata") {
        match metadata.get_mut("annotations") {
            Some(Value::Object(annotations)) => drop(annotations.remove(LAST_APPLIED_ANNOTATION)),
            _ => drop(metadata.remove("annotations")),
        }
    }
    // The escapes that Go's JSON encoder adds; `<`, `>` and `&` occur only inside strings.
    let text =
        config.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026") + "\n";
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
        annotations.insert(LAST_APPLIED_ANNOTATION.to_owned(), Value::from(text));
        let size: usize =
            annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        if size > MAX_ANNOTATIONS {
            annotations.remove(LAST_APPLIED_ANNOTATION);
        }
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let annotations = object.get("metadata")?.get("annotations")?;
    annotations.get(LAST_APPLIED_ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}
