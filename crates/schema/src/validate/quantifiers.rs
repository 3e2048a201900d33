//! allOf, anyOf, oneOf and not.

use serde_json::Value;

use super::nested;
use crate::error::{ErrorKind, FieldError};
use crate::path::Path;
use crate::structural::{Nested, ValueValidation};

/// Adds the errors of the quantifiers of `v`.
///
/// For anyOf and oneOf, the errors of the first of the alternatives with the fewest errors are added to the summary.
pub(super) fn validate(value: &Value, v: &ValueValidation, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !v.any_of.is_empty() {
        let results = run(value, &v.any_of, path);
        if !results.iter().any(Vec::is_empty) {
            errors.push(summary(format!("{:?} must validate at least one schema (anyOf)", path.to_string())));
            errors.extend(nearest(results));
        }
    }
    if !v.one_of.is_empty() {
        let results = run(value, &v.one_of, path);
        let valid = results.iter().filter(|r| r.is_empty()).count();
        if valid != 1 {
            let found = match valid {
                0 => "Found none valid".to_owned(),
                n => format!("Found {n} valid alternatives"),
            };
            let name = path.to_string();
            errors.push(summary(format!("{name:?} must validate one and only one schema (oneOf). {found}")));
            if valid == 0 {
                errors.extend(nearest(results));
            }
        }
    }
    if !v.all_of.is_empty() {
        let results = run(value, &v.all_of, path);
        let valid = results.iter().filter(|r| r.is_empty()).count();
        if valid != results.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            errors.extend(results.into_iter().flatten());
            let name = path.to_string();
            errors.push(summary(format!("{name:?} must validate all the schemas (allOf){none}")));
        }
    }
    if let Some(not) = &v.not {
        let mut found = Vec::new();
        nested(value, not, path, &mut found);
        if found.is_empty() {
            errors.push(summary(format!("{:?} must not validate the schema (not)", path.to_string())));
        }
    }
}

fn run(value: &Value, alternatives: &[Nested], path: &Path<'_>) -> Vec<Vec<FieldError>> {
    alternatives
        .iter()
        .map(|alternative| {
            let mut errors = Vec::new();
            nested(value, alternative, path, &mut errors);
            errors
        })
        .collect()
}

fn nearest(results: Vec<Vec<FieldError>>) -> Vec<FieldError> {
    results.into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// Upstream reports these errors for the whole object, with the path only in the text.
fn summary(text: String) -> FieldError {
    FieldError {
        kind: ErrorKind::Invalid,
        field: "<nil>".to_owned(),
        bad_value: Some(Value::String(String::new())),
        detail: text,
    }
}
