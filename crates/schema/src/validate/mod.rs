//! Validates values against a schema, with the errors and texts of upstream's validators.
//!
//! On update, an unchanged value is not checked again ("ratcheting"), so that a stricter schema does not block changes
//! of other fields.

pub mod embedded;
pub mod formats;
pub mod lists;
mod quantifiers;
mod scalars;

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::{FieldError, MAX_ERRORS};
use crate::path::Path;
use crate::structural::{ListType, Nested, Structural, Type, ValueValidation};

/// Everything except CEL: types, value validations, list uniqueness, embedded resources.
pub fn validate(object: &Value, old: Option<&Value>, schema: &Structural) -> Vec<FieldError> {
    let root = Path::root();
    let mut errors = Vec::new();
    node(object, old, schema, &root, &mut errors);
    embedded::validate(object, old, schema, &root, &mut errors);
    lists::validate(object, old, schema, &root, &mut errors);
    if errors.len() > MAX_ERRORS {
        errors.truncate(MAX_ERRORS);
        errors.push(FieldError::more());
    }
    errors
}

/// [`validate`] for a value at `path` without an old value, as for defaults.
pub(crate) fn validate_at(value: &Value, schema: &Structural, path: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    node(value, None, schema, path, &mut errors);
    embedded::validate(value, None, schema, path, &mut errors);
    lists::validate(value, None, schema, path, &mut errors);
    errors
}

/// Validates a node and its descendants.
fn node(
    value: &Value,
    old: Option<&Value>,
    schema: &Structural,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if errors.len() > MAX_ERRORS || old == Some(value) {
        return;
    }
    if value.is_null() && schema.nullable {
        return;
    }
    if let Some(wanted) = wrong_type(value, schema) {
        errors.push(type_error(value, wanted, path));
        return;
    }
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                if let Some(property) = schema.property(name) {
                    let old = old.and_then(|o| o.get(name));
                    node(value, old, property, &path.child(name), errors);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                let correlation = Correlation::new(schema, old);
                for (i, item) in list.iter().enumerate() {
                    node(item, correlation.find(item), items, &path.index(i), errors);
                }
            }
        }
        _ => {}
    }
    if let Some(validation) = &schema.value {
        let implied = if schema.int_or_string { None } else { schema.kind };
        value_validation(value, validation, implied, path, errors);
    }
}

/// A nested validation restricts a value whose type was already checked against the structure.
fn nested(value: &Value, schema: &Nested, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if errors.len() > MAX_ERRORS {
        return;
    }
    if let Some(kind) = schema.kind
        && !type_matches(value, kind)
    {
        errors.push(type_error(value, kind.name(), path));
        return;
    }
    match value {
        Value::Object(object) => {
            for (name, property) in &schema.properties {
                if let Some(value) = object.get(name) {
                    nested(value, property, &path.child(name), errors);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter().enumerate().for_each(|(i, item)| nested(item, items, &path.index(i), errors));
            }
        }
        _ => {}
    }
    value_validation(value, &schema.value, schema.kind, path, errors);
}

fn value_validation(
    value: &Value,
    v: &ValueValidation,
    kind: Option<Type>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    match value {
        Value::Object(object) => properties(object, v, path, errors),
        Value::Array(list) => {
            if let Some(min) = v.min_items
                && (list.len() as u64) < min
            {
                let text = format!("{path} in body should have at least {min} items");
                errors.push(FieldError::invalid(path, list.len(), text));
            }
            if let Some(max) = v.max_items
                && list.len() as u64 > max
            {
                errors.push(FieldError::too_many(path, list.len(), max));
            }
        }
        Value::String(s) => scalars::string(s, v, path, errors),
        Value::Number(n) => scalars::number(n, v, kind, path, errors),
        Value::Bool(_) | Value::Null => {}
    }
    if !v.enumeration.is_empty() && !v.enumeration.iter().any(|allowed| scalars::same(allowed, value)) {
        let supported: Vec<_> = v
            .enumeration
            .iter()
            .map(|allowed| match allowed {
                Value::String(s) => s.clone(),
                other => other.to_string(),
            })
            .collect();
        errors.push(FieldError::not_supported(path, value.clone(), &supported));
    }
    quantifiers::validate(value, v, path, errors);
}

fn properties(
    object: &Map<String, Value>,
    v: &ValueValidation,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if let Some(min) = v.min_properties
        && (object.len() as u64) < min
    {
        let text = format!("{path} in body should have at least {min} properties");
        errors.push(FieldError::invalid(path, object.len(), text));
    }
    if let Some(max) = v.max_properties
        && object.len() as u64 > max
    {
        errors.push(FieldError::too_many(path, object.len(), max));
    }
    for name in &v.required {
        if errors.len() <= MAX_ERRORS && !object.contains_key(name) {
            errors.push(FieldError::required(&path.child(name), ""));
        }
    }
}

fn wrong_type(value: &Value, schema: &Structural) -> Option<&'static str> {
    if schema.int_or_string {
        let fits = value.is_string() || type_matches(value, Type::Integer);
        return (!fits).then_some("integer,string");
    }
    let kind = schema.kind?;
    (!type_matches(value, kind)).then(|| kind.name())
}

fn type_matches(value: &Value, kind: Type) -> bool {
    match (kind, value) {
        (Type::Object, Value::Object(_))
        | (Type::Array, Value::Array(_))
        | (Type::String, Value::String(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_)) => true,
        (Type::Integer, Value::Number(n)) => {
            n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0 && f.abs() < 9.2e18)
        }
        _ => false,
    }
}

fn type_error(value: &Value, wanted: &str, path: &Path<'_>) -> FieldError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    FieldError::type_invalid(path, found, format!("{path} in body must be of type {wanted}: {found:?}"))
}

/// Matches items of a list of type map with old items; items of other lists have no old value.
pub(crate) struct Correlation<'a> {
    keys: &'a [String],
    /// The first old item of each key; a linear search per item would be quadratic in the length of the list.
    old: HashMap<String, &'a Value>,
}

impl<'a> Correlation<'a> {
    pub(crate) fn new(schema: &'a Structural, old: Option<&'a Value>) -> Self {
        let keys = &*schema.list_map_keys;
        let items = match schema.list_type {
            Some(ListType::Map) => old.and_then(Value::as_array),
            _ => None,
        };
        let mut old = HashMap::with_capacity(items.map_or(0, Vec::len));
        for item in items.into_iter().flatten() {
            old.entry(key_of(keys, item)).or_insert(item);
        }
        Correlation { keys, old }
    }

    pub(crate) fn find(&self, item: &Value) -> Option<&'a Value> {
        if self.old.is_empty() {
            return None;
        }
        self.old.get(&key_of(self.keys, item)).copied()
    }
}

/// The key fields of an item as text; an absent field differs from every value.
fn key_of(keys: &[String], item: &Value) -> String {
    let mut text = String::new();
    for key in keys {
        match item.get(key) {
            None => text.push(','),
            Some(value) => text.push_str(&format!("{value},")),
        }
    }
    text
}
