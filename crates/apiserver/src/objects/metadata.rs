//! The rules for `metadata` of all kinds.

use serde_json::{Map, Value};

use super::WriteContext;
use crate::object::{ObjectExt, object_mut};
use crate::resources::{NameRule, Resource};
use crate::status::{FieldError, Status};
use crate::validation;

const MAX_ANNOTATIONS: usize = 256 << 10;
/// Alphabet of generated suffixes: without vowels and easily confused characters.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const MAX_GENERATED_PREFIX: usize = 58;

/// Completes the body's identity from the URL, or rejects the body if they differ.
pub(super) fn reconcile_identity(
    resource: &Resource,
    namespace: &str,
    name: Option<&str>,
    object: &mut Value,
) -> Result<(), Status> {
    if !object.is_object() {
        return Err(Status::bad_request("the body of the request must be an object"));
    }
    if !object.get("metadata").is_none_or(|meta| meta.is_object() || meta.is_null()) {
        return Err(Status::bad_request("metadata must be an object"));
    }
    let expected = resource.api_version();
    match object.api_version() {
        "" => drop(object_mut(object).insert("apiVersion".into(), expected.into())),
        given if given == expected => {}
        given => {
            return Err(Status::bad_request(format!(
                "the API version in the data ({given}) does not match the expected API version ({expected})"
            )));
        }
    }
    match object.kind() {
        "" => drop(object_mut(object).insert("kind".into(), resource.def.kind.clone().into())),
        given if given == resource.def.kind => {}
        given => {
            return Err(Status::bad_request(format!(
                "the kind in the data ({given}) does not match the expected kind ({})",
                resource.def.kind
            )));
        }
    }
    if resource.def.namespaced {
        match object.namespace() {
            "" => object.set_meta_str("namespace", namespace),
            given if given == namespace => {}
            given => {
                return Err(Status::bad_request(format!(
                    "the namespace of the provided object does not match the namespace sent on the request ({given} != {namespace})"
                )));
            }
        }
    } else if object.namespace().is_empty() {
        object.metadata_mut().remove("namespace");
    }
    if let Some(name) = name {
        match object.name() {
            "" => object.set_meta_str("name", name),
            given if given == name => {}
            given => {
                return Err(Status::bad_request(format!(
                    "the name of the object ({given}) does not match the name on the URL ({name})"
                )));
            }
        }
    }
    Ok(())
}

/// Drops empty fields and fields that are never served, so that equal objects have equal bytes.
pub(super) fn drop_empty_fields(object: &mut Value) {
    let metadata = object.metadata_mut();
    metadata.remove("selfLink");
    metadata.remove("clusterName");
    metadata.retain(|_, value| !is_empty(value));
    metadata.entry("creationTimestamp").or_insert(Value::Null);
    if metadata["creationTimestamp"].is_null() {
        metadata.remove("creationTimestamp");
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Appends a random suffix to a prefix, which is shortened if necessary.
pub(super) fn generate_name(prefix: &str) -> String {
    let mut cut = prefix.len().min(MAX_GENERATED_PREFIX);
    while !prefix.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut name = prefix[..cut].to_owned();
    for _ in 0..5 {
        let at = rand::random_range(0..ALPHABET.len());
        name.push(char::from(ALPHABET[at]));
    }
    name
}

/// Copies the fields that only the server may change from the old object.
pub(super) fn keep_system_fields(resource: &Resource, object: &mut Value, old: &Value) -> Result<(), Status> {
    let old_meta = old.get("metadata").and_then(Value::as_object);
    let uid = object.uid().to_owned();
    if !uid.is_empty() && uid != old.uid() {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", old.uid());
        return Err(Status::conflict(resource.group_resource(), old.name(), &why));
    }
    let metadata = object.metadata_mut();
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"]
    {
        keep(metadata, old_meta, field);
    }
    Ok(())
}

/// Copies a field from an old map, or removes it.
pub(super) fn keep(target: &mut Map<String, Value>, old: Option<&Map<String, Value>>, field: &str) {
    match old.and_then(|old| old.get(field)) {
        Some(value) => drop(target.insert(field.to_owned(), value.clone())),
        None => drop(target.remove(field)),
    }
}

/// Removes repeated owners, with a warning.
pub(super) fn deduplicate_owners(context: &WriteContext, object: &mut Value) {
    let Some(Value::Array(owners)) = object.metadata_mut().get_mut("ownerReferences") else { return };
    let mut seen = std::collections::HashSet::new();
    let before = owners.len();
    owners.retain(|owner| {
        let uid = owner.get("uid").and_then(Value::as_str).unwrap_or_default();
        uid.is_empty() || seen.insert(uid.to_owned())
    });
    if owners.len() != before {
        context.warnings.add(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests",
        );
    }
}

/// Returns the errors in the metadata of a new or changed object.
pub(super) fn validate(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_name(resource, object, &mut errors);
    let empty = Map::new();
    let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    validate_pairs(metadata, &mut errors);
    validate_owners(metadata, &mut errors);
    validate_finalizers(object, old, &mut errors);
    errors
}

fn validate_name(resource: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    let name = object.name();
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        let verdict = match resource.def.rules.names {
            NameRule::Subdomain => validation::dns1123_subdomain(name),
            NameRule::Label => validation::dns1123_label(name),
            NameRule::Dns1035Label => validation::dns1035_label(name),
            NameRule::PathSegment => validation::path_segment(name),
        };
        // The path segment rule allows every character that the key can contain; only a slash would break the key.
        if let Err(why) = verdict.and_then(|()| validation::path_segment(name)) {
            errors.push(FieldError::invalid("metadata.name", &name.into(), why));
        }
    }
    let namespace = object.namespace();
    if resource.def.namespaced {
        if let Err(why) = validation::dns1123_label(namespace) {
            errors.push(FieldError::invalid("metadata.namespace", &namespace.into(), why));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
}

fn validate_pairs(metadata: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    for (field, is_label) in [("labels", true), ("annotations", false)] {
        let path = format!("metadata.{field}");
        let pairs = match metadata.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(pairs)) => pairs,
            Some(other) => {
                errors.push(FieldError::type_invalid(path, other, "must be a map of strings"));
                continue;
            }
        };
        let mut size = 0;
        for (key, value) in pairs {
            // Upstream validates annotation keys in lower case.
            let checked = if is_label { key.clone() } else { key.to_lowercase() };
            if let Err(why) = validation::label_key(&checked) {
                errors.push(FieldError::invalid(path.as_str(), &key.as_str().into(), why));
            }
            let Some(text) = value.as_str() else {
                errors.push(FieldError::type_invalid(format!("{path}.{key}"), value, "must be a string"));
                continue;
            };
            if is_label && let Err(why) = validation::label_value(text) {
                errors.push(FieldError::invalid(path.as_str(), value, why));
            }
            size += key.len() + text.len();
        }
        if !is_label && size > MAX_ANNOTATIONS {
            errors.push(FieldError::too_long(path, MAX_ANNOTATIONS));
        }
    }
}

fn validate_owners(metadata: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let path = "metadata.ownerReferences";
    let Some(owners) = metadata.get("ownerReferences").filter(|owners| !owners.is_null()) else { return };
    let Some(owners) = owners.as_array() else {
        errors.push(FieldError::type_invalid(path, owners, "must be a list"));
        return;
    };
    let mut controllers = 0;
    for (at, owner) in owners.iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner.top_str(field).is_empty() {
                errors.push(FieldError::invalid(
                    format!("{path}[{at}].{field}"),
                    &Value::from(""),
                    "must not be empty",
                ));
            }
        }
        if owner.kind() == "Event" && matches!(owner.api_version(), "v1" | "events.k8s.io/v1") {
            errors.push(FieldError::invalid(path, owner, "Event is disallowed from being an owner"));
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true";
        errors.push(FieldError::invalid(path, &Value::Array(owners.clone()), why));
    }
}

fn validate_finalizers(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let path = "metadata.finalizers";
    let raw = object.get("metadata").and_then(|meta| meta.get("finalizers"));
    if let Some(other) = raw.filter(|raw| {
        !raw.is_null() && !raw.as_array().is_some_and(|items| items.iter().all(Value::is_string))
    }) {
        errors.push(FieldError::type_invalid(path, other, "must be a list of strings"));
    }
    let finalizers = object.finalizers();
    for finalizer in &finalizers {
        if let Err(why) = validation::label_key(finalizer) {
            errors.push(FieldError::invalid(path, &Value::from(*finalizer), why));
        }
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let list = Value::from(finalizers.iter().map(|f| Value::from(*f)).collect::<Vec<_>>());
        errors.push(FieldError::invalid(
            path,
            &list,
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
    let Some(old) = old.filter(|old| old.is_deleting()) else { return };
    let before = old.finalizers();
    let added: Vec<&str> = finalizers.iter().copied().filter(|f| !before.contains(f)).collect();
    if !added.is_empty() {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        );
        errors.push(FieldError::forbidden(path, why));
    }
}
