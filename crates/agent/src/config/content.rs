//! Parses a file as leniently as the original: JSON as Go's `encoding/json`, YAML converted to JSON first. Field names
//! are case-insensitive, `null` means unset, and the last of several equal fields is used.
//!
//! No error message contains a value, because the connection file contains a token.

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

/// Reads the first value in the text and ignores the rest.
pub(super) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Vec<String>), String> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    values.next().ok_or("the file is empty")?.map_err(|error| error.to_string())?;
    let first = &bytes[..values.byte_offset()];
    Ok((typed(first)?, serde_json::from_slice::<Keys>(first).map(|keys| keys.0).unwrap_or_default()))
}

/// Reads the first document.
pub(super) fn yaml(bytes: &[u8]) -> Result<Value, String> {
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    let mut rest = bytes;
    let first = serde_saphyr::read_with_options::<_, Value>(&mut rest, options).next();
    first.unwrap_or(Ok(Value::Null)).map_err(|error| match error.location() {
        Some(at) => format!("invalid YAML at line {} column {}", at.line(), at.column()),
        None => "invalid YAML".to_owned(),
    })
}

/// Extracts the fields from a YAML value. For text fields (`texts`), a number or `true` is accepted and converted to
/// text.
pub(super) fn fields<T: DeserializeOwned>(
    mut value: Value,
    texts: &[&str],
) -> Result<(T, Vec<String>), String> {
    let fields = value.as_object_mut().into_iter().flatten();
    for (_, value) in fields.filter(|(key, _)| texts.iter().any(|text| text.eq_ignore_ascii_case(key))) {
        if matches!(value, Value::Number(_) | Value::Bool(_)) {
            *value = Value::String(value.to_string());
        }
    }
    let keys = value.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect();
    let bytes = serde_json::to_vec(&value).map_err(|error| error.to_string())?;
    Ok((typed(&bytes)?, keys))
}

fn typed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    drover_plan::from_slice(bytes).map_err(|error| match error.to_string() {
        whole if whole.starts_with("at ") => whole,
        whole => format!("the content: {whole}"),
    })
}

/// The field names of an object.
#[derive(Deserialize)]
#[serde(from = "std::collections::BTreeMap<String, IgnoredAny>")]
struct Keys(Vec<String>);

impl From<std::collections::BTreeMap<String, IgnoredAny>> for Keys {
    fn from(fields: std::collections::BTreeMap<String, IgnoredAny>) -> Self {
        Self(fields.into_keys().collect())
    }
}
