//! `FieldsV1`: a set of paths as nested JSON objects, as in managedFields.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;

use super::{PathElement, Set};
use crate::value::write_float;

/// Why a `FieldsV1` document cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FieldsError {
    /// A value that should be an object is not.
    #[error("fieldsV1 must be made of objects, found {0}")]
    NotAnObject(String),
    /// A key that is neither `.` nor `<type>:<content>` with valid content.
    #[error("fieldsV1 key {0:?} is not a path element")]
    BadElement(String),
}

impl Set {
    /// The set as a JSON value.
    pub fn to_value(&self) -> Value {
        self.node_value(false)
    }

    /// The set as JSON text, keys in the order of the set (fields, keys, values, indexes).
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(self.len() * 16 + 2);
        self.write_node(&mut out, false);
        out
    }

    /// Reads the output of [`Set::to_value`]. Elements of unknown types are dropped.
    pub fn from_value(value: &Value) -> Result<Set, FieldsError> {
        Ok(read_node(value)?.0)
    }

    fn node_value(&self, include_self: bool) -> Value {
        let mut map = Map::new();
        if include_self && !(self.members.is_empty() && self.children.is_empty()) {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for member in &self.members {
            map.insert(element_to_string(member), Value::Object(Map::new()));
        }
        for (pe, child) in &self.children {
            map.insert(element_to_string(pe), child.node_value(self.has_member(pe)));
        }
        Value::Object(map)
    }

    fn write_node(&self, out: &mut String, include_self: bool) {
        out.push('{');
        let mut first = true;
        if include_self && !(self.members.is_empty() && self.children.is_empty()) {
            out.push_str("\".\":{}");
            first = false;
        }
        let (mut members, mut children) = (self.members.iter().peekable(), self.children.iter().peekable());
        loop {
            let (member, child) = match (members.peek(), children.peek()) {
                (None, None) => break,
                (Some(member), Some((pe, _))) => (*member <= pe, pe <= member),
                (member, child) => (member.is_some(), child.is_some()),
            };
            if !first {
                out.push(',');
            }
            first = false;
            let member = if member { members.next() } else { None };
            let child = if child { children.next() } else { None };
            if let Some(pe) = child.map(|(pe, _)| pe).or(member) {
                write_string(out, &element_to_string(pe), false);
            }
            out.push(':');
            match child {
                Some((_, child)) => child.write_node(out, member.is_some()),
                None => out.push_str("{}"),
            }
        }
        out.push('}');
    }
}

/// The subtree, and whether the node itself is a member.
fn read_node(value: &Value) -> Result<(Set, bool), FieldsError> {
    let Value::Object(map) = value else {
        return Err(FieldsError::NotAnObject(value.to_string()));
    };
    let mut set = Set::new();
    let mut is_member = false;
    for (key, value) in map {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(pe) = read_element(key)? else { continue };
        let (child, child_is_member) = read_node(value)?;
        if child_is_member {
            set.members.push(pe.clone());
        }
        if !(child.members.is_empty() && child.children.is_empty()) {
            set.children.push((pe, Arc::new(child)));
        }
    }
    if !set.members.is_sorted() {
        set.members.sort();
    }
    set.members.dedup();
    if !set.children.is_sorted_by(|l, r| l.0 <= r.0) {
        set.children.sort_by(|l, r| l.0.cmp(&r.0));
    }
    set.children.dedup_by(|l, r| l.0 == r.0);
    let leaf = set.members.is_empty() && set.children.is_empty();
    Ok((set, is_member || leaf))
}

fn read_element(text: &str) -> Result<Option<PathElement>, FieldsError> {
    let bad = || FieldsError::BadElement(text.to_owned());
    let (kind, content) = match text.as_bytes() {
        [kind, b':', ..] => (*kind, &text[2..]),
        _ => return Err(bad()),
    };
    Ok(Some(match kind {
        b'f' => PathElement::field(content),
        b'k' => {
            let fields: Map<String, Value> = serde_json::from_str(content).map_err(|_| bad())?;
            PathElement::key(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
        }
        b'v' => PathElement::value(serde_json::from_str(content).map_err(|_| bad())?),
        b'i' => PathElement::Index(content.parse().map_err(|_| bad())?),
        _ => return Ok(None),
    }))
}

fn element_to_string(pe: &PathElement) -> String {
    let mut out = String::new();
    match pe {
        PathElement::Field(name) => {
            out.reserve(name.len() + 2);
            out.push_str("f:");
            out.push_str(name);
        }
        PathElement::Key(fields) => {
            out.push_str("k:{");
            for (i, (name, value)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(&mut out, name, false);
                out.push(':');
                write_value(&mut out, value);
            }
            out.push('}');
        }
        PathElement::Value(value) => {
            out.push_str("v:");
            write_value(&mut out, value);
        }
        PathElement::Index(index) => {
            let _ = write!(out, "i:{index}");
        }
    }
    out
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::String(s) => write_string(out, s, true),
        Value::Number(n) => match n.as_f64() {
            Some(f) if n.is_f64() => write_float(out, f),
            _ => {
                let _ = write!(out, "{n}");
            }
        },
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(out, key, true);
                out.push(':');
                write_value(out, value);
            }
            out.push('}');
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// Upstream's writer escapes `<`, `>`, `&` and the two line separators inside values, but not in names. The escaped
/// text is part of a key, so this writer must do the same.
fn write_string(out: &mut String, text: &str, html: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' || (html && matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}')) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_set_round_trips_and_keeps_upstream_order() {
        let text = r#"{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:ports":{".":{},"k:{\"port\":9,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":80,\"protocol\":\"TCP\"}":{}},"f:set":{"v:\"a\"":{},"v:\"b\"":{}}}}"#;
        let set = Set::from_value(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(set.to_json(), text);
        assert_eq!(set.to_value(), serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(set.len(), 8);
    }

    #[test]
    fn unknown_element_types_are_dropped_and_malformed_ones_rejected() {
        let set = Set::from_value(&json!({"x:new": {}, "f:a": {}})).unwrap();
        assert_eq!(set.to_json(), r#"{"f:a":{}}"#);
        for bad in [json!({"f": {}}), json!({"v:{": {}}), json!({"i:x": {}}), json!([]), json!({"f:a": 1})] {
            assert!(Set::from_value(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn markup_in_values_is_escaped_but_not_in_names() {
        let mut set = Set::new();
        set.insert(&[PathElement::field("a<b"), PathElement::value(json!("c<d\u{8}"))]);
        assert_eq!(set.to_json(), r#"{"f:a<b":{"v:\"c\\u003cd\\u0008\"":{}}}"#);
        assert_eq!(Set::from_value(&set.to_value()).unwrap(), set);
    }
}
