//! Equality and order of JSON values in structured merge: `1` and `1.0` are equal, and values of different types have a
//! fixed order, so that sets can be sorted.

use std::cmp::Ordering;
use std::fmt::Write;

use serde_json::{Number, Value};

/// Equality by value; numbers are compared numerically, regardless of notation.
pub fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(l), Value::Number(r)) => compare_numbers(l, r) == Ordering::Equal,
        (Value::String(l), Value::String(r)) => l == r,
        (Value::Array(l), Value::Array(r)) => l.len() == r.len() && l.iter().zip(r).all(|(l, r)| equal(l, r)),
        (Value::Object(l), Value::Object(r)) => {
            l.len() == r.len() && l.iter().all(|(key, l)| r.get(key).is_some_and(|r| equal(l, r)))
        }
        (Value::Bool(l), Value::Bool(r)) => l == r,
        (Value::Null, Value::Null) => true,
        _ => false,
    }
}

/// A total order: numbers, strings, booleans, lists, maps, null.
pub fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(l), Value::Number(r)) => compare_numbers(l, r),
        (Value::String(l), Value::String(r)) => l.cmp(r),
        (Value::Bool(l), Value::Bool(r)) => l.cmp(r),
        (Value::Array(l), Value::Array(r)) => {
            l.iter().zip(r).map(|(l, r)| compare(l, r)).find(|o| o.is_ne()).unwrap_or(l.len().cmp(&r.len()))
        }
        (Value::Object(l), Value::Object(r)) => compare_objects(l, r),
        _ => rank(left).cmp(&rank(right)),
    }
}

/// The display form of a value in a path: strings are quoted.
pub fn display(value: &Value) -> String {
    let mut out = String::new();
    write_display(&mut out, value);
    out
}

fn write_display(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => {
            let _ = write!(out, "{b}");
        }
        Value::Number(n) => match n.as_f64() {
            Some(f) if n.is_f64() => write_float(out, f),
            _ => {
                let _ = write!(out, "{n}");
            }
        },
        Value::String(s) => {
            let _ = write!(out, "{s:?}");
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_display(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            for (key, value) in map {
                out.push_str(key);
                out.push('=');
                write_display(out, value);
            }
        }
    }
}

/// The shortest decimal form; with an exponent only if plain digits would be too long to read.
pub(crate) fn write_float(out: &mut String, f: f64) {
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{f:e}");
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => {
                let _ = write!(out, "{digits}e+{exponent}");
            }
            _ => out.push_str(&text),
        }
    } else {
        let _ = write!(out, "{f}");
    }
}

fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    match (left.as_i64(), right.as_i64()) {
        (Some(l), Some(r)) => l.cmp(&r),
        _ => {
            let (l, r) = (left.as_f64().unwrap_or(0.0), right.as_f64().unwrap_or(0.0));
            l.partial_cmp(&r).unwrap_or(Ordering::Equal)
        }
    }
}

fn compare_objects(
    left: &serde_json::Map<String, Value>,
    right: &serde_json::Map<String, Value>,
) -> Ordering {
    let sorted = |map| {
        let mut entries: Vec<(&String, &Value)> = serde_json::Map::iter(map).collect();
        entries.sort_by_key(|(key, _)| *key);
        entries
    };
    let (left, right) = (sorted(left), sorted(right));
    left.iter()
        .zip(&right)
        .map(|((lk, lv), (rk, rv))| lk.cmp(rk).then_with(|| compare(lv, rv)))
        .find(|o| o.is_ne())
        .unwrap_or(left.len().cmp(&right.len()))
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_equal_across_notations() {
        assert!(equal(&json!({"a": [1, 2.5]}), &json!({"a": [1.0, 2.5]})));
        assert!(!equal(&json!(1), &json!("1")));
        assert_eq!(compare(&json!(2), &json!(10)), Ordering::Less);
        assert_eq!(compare(&json!(2), &json!("a")), Ordering::Less);
    }

    #[test]
    fn floats_are_written_as_upstream_does() {
        for (f, text) in [(1.0, "1"), (0.5, "0.5"), (1e21, "1e+21"), (1.5e-9, "1.5e-9"), (-3.25, "-3.25")] {
            let mut out = String::new();
            write_float(&mut out, f);
            assert_eq!(out, text);
        }
    }
}
