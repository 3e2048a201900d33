//! Printers of built-in kinds, with upstream's columns and cell texts.

mod batch;
mod config;
mod network;
mod node;
mod pod;
mod rbac;
mod workload;

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::Value;

use super::age::since;
use super::{Column, Printer};
use crate::object::ObjectExt;

/// The printer of a built-in kind; kinds without a printer show Name and Created At.
pub fn printer(group: &str, kind: &str) -> &'static dyn Printer {
    let found = PRINTERS.iter().find(|p| p.group == group && p.kind == kind);
    match found {
        Some(printer) => printer,
        None => &*FALLBACK,
    }
}

struct BuiltIn {
    group: &'static str,
    kind: &'static str,
    columns: Vec<Column>,
    cells: fn(&Value, Timestamp) -> Vec<Value>,
}

impl Printer for BuiltIn {
    fn columns(&self) -> &[Column] {
        &self.columns
    }
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        (self.cells)(object, now)
    }
}

static FALLBACK: LazyLock<BuiltIn> = LazyLock::new(|| {
    define("", "", "Name,Created At:date", |object, _| {
        let created = object.get("metadata").and_then(|m| m.get("creationTimestamp")).cloned();
        vec![object.name().into(), created.unwrap_or_default()]
    })
});

static PRINTERS: LazyLock<Vec<BuiltIn>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for part in [
        batch::printers,
        config::printers,
        network::printers,
        node::printers,
        pod::printers,
        rbac::printers,
        workload::printers,
    ] {
        all.extend(part());
    }
    all
});

/// Columns in the notation `Name,Data:integer,IP*`; a star marks those for `-o wide`.
fn define(
    group: &'static str,
    kind: &'static str,
    columns: &str,
    cells: fn(&Value, Timestamp) -> Vec<Value>,
) -> BuiltIn {
    let columns = columns
        .split(',')
        .map(|text| {
            let (text, priority) = match text.strip_suffix('*') {
                Some(text) => (text, 1),
                None => (text, 0),
            };
            let (name, kind) = text.split_once(':').unwrap_or((text, "string"));
            Column::new(name, kind, priority)
        })
        .collect();
    BuiltIn { group, kind, columns, cells }
}

fn at<'v>(object: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(object, |value, key| value.get(key))
}

fn text<'v>(object: &'v Value, path: &[&str]) -> &'v str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, path: &[&str]) -> i64 {
    at(object, path).and_then(Value::as_i64).unwrap_or(0)
}

fn list<'v>(object: &'v Value, path: &[&str]) -> &'v [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn count(object: &Value, field: &str) -> usize {
    object.get(field).and_then(Value::as_object).map_or(0, |m| m.len())
}

fn or_none(text: &str) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn age(object: &Value, now: Timestamp) -> Value {
    since(at(object, &["metadata", "creationTimestamp"]), now).into()
}

/// `Name` and `Age`.
fn name_age(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![object.name().into(), age(object, now)]
}

fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    list(object, &["status", "conditions"]).iter().find(|c| c.top_str("type") == kind)
}

fn condition_is(object: &Value, kind: &str, status: &str) -> bool {
    condition(object, kind).is_some_and(|c| c.top_str("status") == status)
}

/// Names and images of the containers of a pod template.
fn containers(template: Option<&Value>) -> [Value; 2] {
    let containers = template.map(|t| list(t, &["spec", "containers"])).unwrap_or_default();
    let join = |field: &str| containers.iter().map(|c| c.top_str(field)).collect::<Vec<_>>().join(",");
    [join("name").into(), join("image").into()]
}

/// `a=b,c in (d,e)`: a LabelSelector in its string form; an empty one is `<none>`.
fn selector(selector: Option<&Value>) -> Value {
    let Some(selector) = selector else { return "<none>".into() };
    let mut parts: Vec<String> = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    for requirement in list(selector, &["matchExpressions"]) {
        let key = requirement.top_str("key");
        let values: Vec<_> = list(requirement, &["values"]).iter().filter_map(Value::as_str).collect();
        let values = values.join(",");
        parts.push(match requirement.top_str("operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    or_none(&parts.join(","))
}

/// `a=b,c=d`: a plain map of labels.
fn labels(map: Option<&Value>) -> Value {
    let pairs = map.and_then(Value::as_object).into_iter().flatten();
    let parts: Vec<_> = pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    or_none(&parts.join(","))
}
