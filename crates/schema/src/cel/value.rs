//! Converts JSON values to CEL values, according to the schema.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use serde_json::{Number, Value};

use super::names::escape;
use crate::structural::{Structural, Type};
use crate::validate::formats::Format;

/// Converts `value`; `resource` marks the root and embedded resources, of whose metadata rules see only the names.
pub(super) fn bind(value: &Value, schema: &Structural, resource: bool) -> Cel {
    match value {
        Value::Object(object) => {
            let mut map = HashMap::with_capacity(object.len());
            for (name, value) in object {
                let resource = resource || schema.embedded_resource;
                let bound = match schema.properties.get(name) {
                    _ if resource && name == "metadata" => metadata(value),
                    Some(property) => bind(value, property, false),
                    None if resource && matches!(name.as_str(), "apiVersion" | "kind") => untyped(value),
                    None => match schema.additional.schema() {
                        Some(additional) => {
                            // Keys of maps are data and are not escaped.
                            map.insert(key(name), bind(value, additional, false));
                            continue;
                        }
                        // Unknown fields are not visible to rules.
                        None => continue,
                    },
                };
                map.insert(key(&escape(name)), bound);
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
        Value::Array(list) => match &schema.items {
            Some(items) => Cel::List(Arc::new(list.iter().map(|v| bind(v, items, false)).collect())),
            None => untyped(value),
        },
        Value::String(s) if schema.int_or_string => Cel::String(Arc::new(s.clone())),
        Value::String(s) => string(s, schema.value.as_ref().and_then(|v| v.format)),
        Value::Number(n) if schema.kind == Some(Type::Number) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) => number(n),
        Value::Bool(b) => Cel::Bool(*b),
        Value::Null => Cel::Null,
    }
}

fn metadata(value: &Value) -> Cel {
    let mut map = HashMap::new();
    for name in ["name", "generateName"] {
        if let Some(Value::String(s)) = value.get(name) {
            map.insert(key(name), Cel::String(Arc::new(s.clone())));
        }
    }
    Cel::Map(Map { map: Arc::new(map) })
}

fn untyped(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => number(n),
        Value::String(s) => Cel::String(Arc::new(s.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(untyped).collect())),
        Value::Object(object) => {
            Cel::Map(Map { map: Arc::new(object.iter().map(|(k, v)| (key(k), untyped(v))).collect()) })
        }
    }
}

fn number(n: &Number) -> Cel {
    match n.as_i64() {
        Some(i) => Cel::Int(i),
        None => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
    }
}

/// Values that do not parse stay strings; validation has reported them before any rule runs.
fn string(s: &str, format: Option<Format>) -> Cel {
    let typed = match format {
        Some(Format::DateTime) => chrono::DateTime::parse_from_rfc3339(s).ok().map(Cel::Timestamp),
        Some(Format::Date) => chrono::NaiveDate::parse_from_str(s, "%Y-%m-%d")
            .ok()
            .and_then(|d| d.and_hms_opt(0, 0, 0))
            .map(|t| Cel::Timestamp(t.and_utc().fixed_offset())),
        Some(Format::Duration) => {
            crate::duration::parse(s).map(|n| Cel::Duration(chrono::TimeDelta::nanoseconds(n)))
        }
        Some(Format::Byte) => {
            base64::engine::general_purpose::STANDARD.decode(s).ok().map(|b| Cel::Bytes(Arc::new(b)))
        }
        _ => None,
    };
    typed.unwrap_or_else(|| Cel::String(Arc::new(s.to_owned())))
}

fn key(name: &str) -> Key {
    Key::String(Arc::new(name.to_owned()))
}
