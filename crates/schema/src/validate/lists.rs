//! Uniqueness in lists of type set and map.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::Correlation;
use crate::error::{FieldError, MAX_ERRORS};
use crate::path::Path;
use crate::structural::{ListType, Structural};

/// Reports the first repetition of each value or key.
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
            for (name, value) in object {
                let old = old.and_then(|o| o.get(name));
                if let Some(property) = schema.properties.get(name) {
                    validate(value, old, property, &path.child(name), errors);
                } else if let Some(additional) = schema.additional.schema() {
                    validate(value, old, additional, &path.key(name), errors);
                }
            }
        }
        Value::Array(list) => {
            match schema.list_type {
                Some(ListType::Set) => {
                    for i in repeated(list.iter().map(Value::to_string)).into_iter().take(MAX_ERRORS) {
                        errors.push(FieldError::duplicate(&path.index(i), list[i].clone()));
                    }
                }
                Some(ListType::Map) => map(list, &schema.list_map_keys, path, errors),
                _ => {}
            }
            if let Some(items) = &schema.items {
                let correlation = Correlation::new(schema, old);
                for (i, item) in list.iter().enumerate() {
                    if item.is_object() || item.is_array() {
                        validate(item, correlation.find(item), items, &path.index(i), errors);
                    }
                }
            }
        }
        _ => {}
    }
}

fn map(list: &[Value], keys: &[String], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, item) in list.iter().enumerate() {
        if !item.is_object() && !item.is_null() {
            let text = "must be an object for an array of list-type map";
            errors.push(FieldError::invalid(&path.index(i), item.clone(), text));
            return;
        }
    }
    let key_of = |item: &Value| -> Map<String, Value> {
        keys.iter().filter_map(|k| Some((k.clone(), item.get(k)?.clone()))).collect()
    };
    let keys = list.iter().map(|item| Value::Object(key_of(item)).to_string());
    for i in repeated(keys).into_iter().take(MAX_ERRORS) {
        errors.push(FieldError::duplicate(&path.index(i), Value::Object(key_of(&list[i]))));
    }
}

fn repeated(keys: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen = HashMap::<String, u32>::new();
    let mut second = Vec::new();
    for (i, key) in keys.enumerate() {
        let times = seen.entry(key).or_default();
        *times += 1;
        if *times == 2 {
            second.push(i);
        }
    }
    second
}
