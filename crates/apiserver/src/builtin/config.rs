//! Secret and ConfigMap.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{child, immutable, set_default};
use crate::object::{ObjectExt, object_mut};
use crate::status::FieldError;
use crate::validation::config_map_key;

const MAX_DATA: usize = 1 << 20;

/// Sets `type: Opaque`, moves `stringData` to `data`, and replaces `null` there by an empty value, as kube-apiserver
/// does.
pub(super) fn default_secret(secret: &mut Value) {
    if secret.top_str("type").is_empty() {
        object_mut(secret).insert("type".into(), "Opaque".into());
    }
    if let Some(Value::Object(data)) = secret.get_mut("data") {
        data.values_mut().filter(|value| value.is_null()).for_each(|value| *value = "".into());
    }
    let Some(Value::Object(plain)) = object_mut(secret).remove("stringData") else { return };
    let data = object_mut(child(secret, "data"));
    for (key, value) in plain {
        data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
    }
}

pub(super) fn validate_secret(secret: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut total = 0;
    for (key, value) in secret.get("data").and_then(Value::as_object).into_iter().flatten() {
        check_key("data", key, &mut errors);
        match value.as_str().map(|text| STANDARD.decode(text)) {
            Some(Ok(bytes)) => total += bytes.len(),
            None if value.is_null() => {}
            _ => errors.push(FieldError::invalid(
                format!("data[{key}]"),
                &"…".into(),
                "must be base64 encoded",
            )),
        }
    }
    if total > MAX_DATA {
        errors.push(FieldError::too_long("data", MAX_DATA));
    }
    let required: &[&str] = match secret.top_str("type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/service-account-token" => {
            let path = "metadata.annotations[kubernetes.io/service-account.name]";
            let name = &secret["metadata"]["annotations"]["kubernetes.io/service-account.name"];
            if name.as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::required(path, ""));
            }
            &[]
        }
        _ => &[],
    };
    for key in required {
        if secret.get("data").and_then(|data| data.get(key)).is_none() {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    }
    immutable(secret, old, &["type"], &mut errors);
    validate_immutable(secret, old, &["data"], &mut errors);
    errors
}

pub(super) fn validate_config_map(map: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut total = 0;
    let fields = |field: &str| map.get(field).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in fields("data") {
        check_key("data", key, &mut errors);
        if !value.is_string() {
            errors.push(FieldError::type_invalid(format!("data[{key}]"), value, "must be a string"));
        }
        if map.get("binaryData").is_some_and(|binary| binary.get(key).is_some()) {
            errors.push(FieldError::invalid(
                format!("data[{key}]"),
                &key.as_str().into(),
                "duplicate of key present in binaryData",
            ));
        }
        total += value.as_str().map_or(0, str::len);
    }
    for (key, value) in fields("binaryData") {
        check_key("binaryData", key, &mut errors);
        match value.as_str().map(|text| STANDARD.decode(text)) {
            Some(Ok(bytes)) => total += bytes.len(),
            _ => errors.push(FieldError::invalid(
                format!("binaryData[{key}]"),
                value,
                "must be base64 encoded",
            )),
        }
    }
    if total > MAX_DATA {
        errors.push(FieldError::too_long("", MAX_DATA));
    }
    validate_immutable(map, old, &["data", "binaryData"], &mut errors);
    errors
}

fn check_key(field: &str, key: &str, errors: &mut Vec<FieldError>) {
    if let Err(why) = config_map_key(key) {
        errors.push(FieldError::invalid(format!("{field}[{key}]"), &key.into(), why));
    }
}

/// `immutable: true` cannot be removed, and the data cannot be changed.
fn validate_immutable(object: &Value, old: Option<&Value>, fields: &[&str], errors: &mut Vec<FieldError>) {
    let Some(old) = old.filter(|old| old.get("immutable") == Some(&Value::Bool(true))) else { return };
    if object.get("immutable") != Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
    }
    for field in fields {
        if object.get(field) != old.get(field) {
            errors.push(FieldError::forbidden(*field, "field is immutable when `immutable` is set"));
        }
    }
}

/// Durations and counts of a Lease must not be negative.
pub(super) fn validate_lease(lease: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = lease.get("spec").unwrap_or(&Value::Null);
    for field in ["leaseDurationSeconds", "leaseTransitions"] {
        let path = format!("spec.{field}");
        let minimum = i64::from(field == "leaseDurationSeconds");
        match spec.get(field) {
            None | Some(Value::Null) => {}
            Some(value) if value.as_i64().is_some_and(|n| n >= minimum) => {}
            Some(value) => {
                let why = if minimum == 1 {
                    "must be greater than 0"
                } else {
                    "must be greater than or equal to 0"
                };
                errors.push(FieldError::invalid(path, value, why));
            }
        }
    }
    errors
}

/// `addressType` is immutable.
pub(super) fn validate_endpoint_slice(slice: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if slice.top_str("addressType").is_empty() {
        errors.push(FieldError::required("addressType", ""));
    }
    immutable(slice, old, &["addressType"], &mut errors);
    errors
}

pub(super) fn default_endpoint_slice(slice: &mut Value) {
    for port in super::items_mut(slice, "ports") {
        set_default(port, "name", "");
        set_default(port, "protocol", "TCP");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn string_data_becomes_data() {
        let mut secret = json!({"data": {"a": "YQ==", "c": null}, "stringData": {"b": "b"}});
        default_secret(&mut secret);
        assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "YQ==", "b": "Yg==", "c": ""}}));
        assert!(validate_secret(&secret, None).is_empty());
    }

    #[test]
    fn keys_sizes_and_immutability() {
        let bad = json!({"data": {"a/b": "YQ==", "c": "%"}});
        assert_eq!(validate_secret(&bad, None).len(), 2);
        let big = json!({"data": {"a": "x".repeat(MAX_DATA + 1)}});
        assert_eq!(validate_config_map(&big, None).len(), 1);
        let old = json!({"immutable": true, "data": {"a": "1"}});
        let new = json!({"immutable": true, "data": {"a": "2"}});
        assert_eq!(validate_config_map(&new, Some(&old)).len(), 1);
        let tls = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}});
        assert_eq!(validate_secret(&tls, None).len(), 1);
    }
}
