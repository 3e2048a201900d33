//! Strings and numbers.

use serde_json::{Number, Value};

use super::formats::Format;
use crate::error::FieldError;
use crate::path::Path;
use crate::structural::{Type, ValueValidation};

pub(super) fn string(s: &str, v: &ValueValidation, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if v.max_length.is_some() || v.min_length.is_some() {
        let length = s.chars().count() as u64;
        if let Some(max) = v.max_length
            && length > max
        {
            errors.push(FieldError::too_long(path, max));
        }
        if let Some(min) = v.min_length
            && length < min
        {
            let text = format!("{path} in body should be at least {min} chars long");
            errors.push(FieldError::invalid(path, s, text));
        }
    }
    if let Some(pattern) = &v.pattern
        && !pattern.regex.is_match(s)
    {
        let text = format!("{path} in body should match '{}'", pattern.source);
        errors.push(FieldError::invalid(path, s, text));
    }
    if let Some(format) = v.format
        && !format.accepts(s)
    {
        let name = format.name();
        errors.push(FieldError::type_invalid(
            path,
            s,
            format!("{path} in body must be of type {name}: {s:?}"),
        ));
    }
}

pub(super) fn number(
    n: &Number,
    v: &ValueValidation,
    kind: Option<Type>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let value = || Value::Number(n.clone());
    let integer = kind == Some(Type::Integer);
    let out_of_range = match v.format {
        Some(Format::Int32) if integer => n.as_i64().is_none_or(|i| i32::try_from(i).is_err()),
        _ if integer => n.as_i64().is_none() && !n.is_f64(),
        _ => false,
    };
    if out_of_range {
        let text = match v.format {
            Some(f) => {
                format!("Checked value must be of type integer with format {} in {path}", f.name())
            }
            None => format!("Checked value must be of type integer (default format) in {path}"),
        };
        // Upstream has the field only in the text of this error, not in its `field`, and omits the value.
        errors.push(FieldError::invalid(path, value(), text));
    }
    if let Some((max, exclusive)) = &v.maximum {
        let (exceeds, words) = match exclusive {
            true => (compare(n, max).is_ge(), "less than"),
            false => (compare(n, max).is_gt(), "less than or equal to"),
        };
        if exceeds {
            errors.push(FieldError::invalid(
                path,
                value(),
                format!("{path} in body should be {words} {max}"),
            ));
        }
    }
    if let Some((min, exclusive)) = &v.minimum {
        let (below, words) = match exclusive {
            true => (compare(n, min).is_le(), "greater than"),
            false => (compare(n, min).is_lt(), "greater than or equal to"),
        };
        if below {
            errors.push(FieldError::invalid(
                path,
                value(),
                format!("{path} in body should be {words} {min}"),
            ));
        }
    }
    if let Some(factor) = &v.multiple_of
        && !is_multiple(n, factor)
    {
        errors.push(FieldError::invalid(
            path,
            value(),
            format!("{path} in body should be a multiple of {factor}"),
        ));
    }
}

/// Equality as in JSON Schema: `1` and `1.0` are the same number.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b).is_eq(),
        _ => a == b,
    }
}

fn compare(a: &Number, b: &Number) -> std::cmp::Ordering {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64()) {
        return a.cmp(&b);
    }
    let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
    a.total_cmp(&b)
}

fn is_multiple(n: &Number, factor: &Number) -> bool {
    if let (Some(n), Some(factor)) = (n.as_i64(), factor.as_i64()) {
        return factor != 0 && n % factor == 0;
    }
    let (n, factor) = (n.as_f64().unwrap_or(f64::NAN), factor.as_f64().unwrap_or(f64::NAN));
    let quotient = n / factor;
    (quotient - quotient.round()).abs() < 1e-9
}
