//! Field errors with the types, reasons and texts of `apimachinery/pkg/util/validation/field`.

use std::fmt;

use serde_json::Value;

use crate::path::Path;

/// The maximum number of errors that one validation collects. Their text could be many times larger than the object.
pub const MAX_ERRORS: usize = 100;

/// Limits of the path, the value and the detail of an error; longer ones are cut.
const PATH_BYTES: usize = 1 << 10;
const VALUE_BYTES: usize = 1 << 10;
const DETAIL_BYTES: usize = 8 << 10;

/// One validation error of a field. `Display` is upstream's `Error()`; [`FieldError::body`] is the text of a Status
/// cause.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The kind of error.
    pub kind: ErrorKind,
    /// Rendered field path.
    pub field: String,
    /// The invalid value, if it is shown.
    pub bad_value: Option<Value>,
    /// Explanation after the value.
    pub detail: String,
}

/// Upstream's `field.ErrorType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The value refers to something that does not exist.
    NotFound,
    /// A mandatory value is missing.
    Required,
    /// A value that must be unique occurs twice.
    Duplicate,
    /// Malformed or out of bounds.
    Invalid,
    /// Not one of the allowed values.
    NotSupported,
    /// Valid in form but not allowed here.
    Forbidden,
    /// Longer than allowed.
    TooLong,
    /// More items than allowed.
    TooMany,
    /// Not of the type in the schema.
    TypeInvalid,
    /// Not caused by the request.
    Internal,
}

impl ErrorKind {
    /// The `reason` of a Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::Invalid => "FieldValueInvalid",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            ErrorKind::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "Not found",
            ErrorKind::Required => "Required value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Invalid | ErrorKind::TypeInvalid => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooMany => "Too many",
            ErrorKind::Internal => "Internal error",
        }
    }
}

impl FieldError {
    fn new(kind: ErrorKind, path: &Path<'_>, bad_value: Option<Value>, detail: impl Into<String>) -> Self {
        let detail = shortened(detail.into(), DETAIL_BYTES);
        FieldError { kind, field: shortened(path.field(), PATH_BYTES), bad_value, detail }
    }

    /// Represents the errors beyond [`MAX_ERRORS`].
    pub fn more() -> Self {
        let detail = format!("there are more than {MAX_ERRORS} errors, the others are not shown");
        FieldError { kind: ErrorKind::Invalid, field: "<nil>".to_owned(), bad_value: None, detail }
    }

    /// A malformed value.
    pub fn invalid(path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, Some(shown(value.into())), detail)
    }

    /// A value that is not of the type in the schema.
    pub fn type_invalid(path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::TypeInvalid, path, Some(shown(value.into())), detail)
    }

    /// A missing value.
    pub fn required(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, path, None, detail)
    }

    /// A value or field that is not allowed here.
    pub fn forbidden(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, path, None, detail)
    }

    /// A second occurrence of a value that must be unique.
    pub fn duplicate(path: &Path<'_>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, path, Some(shown(value.into())), "")
    }

    /// A value outside an enumeration.
    pub fn not_supported<S: AsRef<str>>(path: &Path<'_>, value: impl Into<Value>, supported: &[S]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<_> = supported.iter().map(|s| format!("{:?}", s.as_ref())).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorKind::NotSupported, path, Some(shown(value.into())), detail)
    }

    /// A string over its limit; upstream's text says bytes although it counts characters.
    pub fn too_long(path: &Path<'_>, max: u64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(ErrorKind::TooLong, path, None, format!("may not be more than {max} {unit}"))
    }

    /// A list or map over its limit.
    pub fn too_many(path: &Path<'_>, actual: usize, max: u64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(ErrorKind::TooMany, path, Some(actual.into()), format!("must have at most {max} {unit}"))
    }

    /// The text without the field, as in `details.causes[].message`.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if let Some(value) = &self.bad_value {
            match value {
                Value::String(s) => text.push_str(&format!(": {s:?}")),
                other => text.push_str(&format!(": {other}")),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

/// A value as shown in errors: a long one is cut.
fn shown(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(shortened(text, VALUE_BYTES)),
        Value::Array(_) | Value::Object(_) => {
            let text = value.to_string();
            if text.len() <= VALUE_BYTES { value } else { Value::String(shortened(text, VALUE_BYTES)) }
        }
        scalar => scalar,
    }
}

/// The beginning of a text: at most `bytes`, in whole characters.
pub(crate) fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

fn shortened(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(head(&text, bytes).len());
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for FieldError {}

/// The text after `is invalid: ` in a 422 Status: a single error as it is, several in brackets without repetitions.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut seen = Vec::<String>::with_capacity(errors.len());
    for error in errors {
        let text = error.to_string();
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    match seen.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_match_upstream() {
        let root = Path::root();
        let spec = root.child("spec");
        let at = spec.child("x");
        assert_eq!(FieldError::required(&at, "").to_string(), "spec.x: Required value");
        assert_eq!(
            FieldError::not_supported(&at, "c", &["a", "b"]).to_string(),
            "spec.x: Unsupported value: \"c\": supported values: \"a\", \"b\""
        );
        assert_eq!(FieldError::too_long(&at, 1).to_string(), "spec.x: Too long: may not be more than 1 byte");
        assert_eq!(
            FieldError::too_many(&at, 3, 2).to_string(),
            "spec.x: Too many: 3: must have at most 2 items"
        );
        let long = FieldError::invalid(&at, "x".repeat(1 << 20), "y".repeat(1 << 20));
        assert!(long.to_string().len() < 16 << 10);
        let one = FieldError::invalid(&at, 3, "bad");
        assert_eq!(aggregate(&[one.clone(), one]), "spec.x: Invalid value: 3: bad");
    }
}
