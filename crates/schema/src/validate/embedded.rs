//! `x-kubernetes-embedded-resource`: an embedded object must have apiVersion, kind and valid metadata.

use serde_json::{Map, Value};

use super::Correlation;
use crate::error::{FieldError, MAX_ERRORS};
use crate::path::Path;
use crate::structural::Structural;

/// Walks the structure and checks every embedded resource.
pub fn validate(
    value: &Value,
    old: Option<&Value>,
    schema: &Structural,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if errors.len() > MAX_ERRORS || old == Some(value) {
        return;
    }
    match value {
        Value::Object(object) => {
            if schema.embedded_resource {
                resource(object, path, errors);
            }
            for (name, value) in object {
                if !value.is_object() && !value.is_array() {
                    continue;
                }
                let old = old.and_then(|o| o.get(name));
                if let Some(property) = schema.properties.get(name) {
                    validate(value, old, property, &path.child(name), errors);
                } else if let Some(additional) = schema.additional.schema() {
                    validate(value, old, additional, &path.key(name), errors);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                let correlation = Correlation::new(schema, old);
                for (i, item) in list.iter().enumerate() {
                    validate(item, correlation.find(item), items, &path.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

fn resource(object: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name);
        match object.get(name) {
            None => errors.push(FieldError::required(&at, "")),
            Some(Value::String(s)) if s.is_empty() => {
                errors.push(FieldError::invalid(&at, "", "must not be empty"));
            }
            Some(Value::String(s)) if name == "apiVersion" => {
                if s.matches('/').count() > 1 {
                    errors.push(FieldError::invalid(
                        &at,
                        s.as_str(),
                        format!("unexpected GroupVersion string: {s}"),
                    ));
                }
            }
            Some(Value::String(s)) => {
                if !is_dns1035_label(&s.to_lowercase()) {
                    errors.push(FieldError::invalid(
                        &at,
                        s.as_str(),
                        "may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case \
                         alphanumeric characters or '-', start with an alphabetic character, and end with an \
                         alphanumeric character",
                    ));
                }
            }
            Some(other) => errors.push(FieldError::invalid(&at, other.clone(), "must be a string")),
        }
    }
    if let Some(meta) = object.get("metadata") {
        metadata(meta, &path.child("metadata"), errors);
    }
}

/// The checks of ObjectMeta validation that can fail for an embedded object.
fn metadata(meta: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Value::Object(meta) = meta else {
        errors.push(FieldError::invalid(path, meta.clone(), "must be an object"));
        return;
    };
    for name in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        match meta.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(s)) if name == "name" || name == "generateName" => {
                if matches!(s.as_str(), "." | "..") {
                    errors.push(FieldError::invalid(
                        &path.child(name),
                        s.as_str(),
                        format!("may not be '{s}'"),
                    ));
                } else if let Some(bad) = s.chars().find(|c| matches!(c, '/' | '%')) {
                    let text = format!("may not contain '{bad}'");
                    errors.push(FieldError::invalid(&path.child(name), s.as_str(), text));
                }
            }
            Some(Value::String(_)) => {}
            Some(other) => {
                errors.push(FieldError::invalid(&path.child(name), other.clone(), "must be a string"));
            }
        }
    }
    for name in ["labels", "annotations"] {
        let at = path.child(name);
        match meta.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) => {
                for (key, value) in map {
                    if errors.len() > MAX_ERRORS {
                        return;
                    }
                    let valid = match value {
                        Value::String(v) => name == "annotations" || is_label_value(v),
                        _ => false,
                    };
                    if !is_qualified_name(key) {
                        errors.push(FieldError::invalid(
                            &at,
                            key.as_str(),
                            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and \
                             end with an alphanumeric character",
                        ));
                    } else if !valid {
                        errors.push(FieldError::invalid(
                            &at,
                            value.clone(),
                            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
                             '.', and must start and end with an alphanumeric character",
                        ));
                    }
                }
            }
            Some(other) => errors.push(FieldError::invalid(&at, other.clone(), "must be an object")),
        }
    }
}

fn is_dns1035_label(s: &str) -> bool {
    let bytes = s.as_bytes();
    s.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn is_label_value(s: &str) -> bool {
    s.is_empty() || (s.len() <= 63 && is_name(s))
}

fn is_qualified_name(s: &str) -> bool {
    let (prefix, name) = match s.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, s),
    };
    name.len() <= 63
        && is_name(name)
        && prefix.is_none_or(|p| super::formats::is_dns1123_subdomain(&p.to_lowercase()))
}

fn is_name(s: &str) -> bool {
    let bytes = s.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
