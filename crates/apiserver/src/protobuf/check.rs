//! Checks JSON objects of built-in kinds against the protobuf table: wrong types and unknown fields.

use serde_json::Value;

use super::table::{self, Form, TypeId};
use crate::limits::{STRICT_ERRORS, shortened};

/// Returns the error of Go's decoder for a value whose type does not match its field.
pub(crate) fn check_types(object: &Value) -> Result<(), String> {
    let Some(of) = kind_of(object) else { return Ok(()) };
    let mut path = String::new();
    check(object, &Form::Message(of), &mut path).map_err(|wanted| {
        let (kind, version) = (text(object, "kind"), text(object, "apiVersion"));
        let path = shortened(&path);
        format!("{kind} in version {version:?} cannot be handled as a {kind}: json: cannot unmarshal into field {path} of type {wanted}")
    })
}

/// Drops unknown fields and returns their paths.
pub(crate) fn prune(object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Some(of) = kind_of(object) {
        prune_value(object, &Form::Message(of), &mut String::new(), &mut unknown);
    }
    unknown
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn kind_of(object: &Value) -> Option<TypeId> {
    table::kind(text(object, "apiVersion"), text(object, "kind"))
}

/// The form of a field of a message, including fields of inline messages.
fn form_of(of: TypeId, name: &str) -> Option<&'static Form> {
    table::fields(of).iter().find_map(|field| match &field.form {
        Form::Message(inner) if field.name.is_empty() => form_of(*inner, name),
        form => (field.name == name).then_some(form),
    })
}

fn is_type_meta(path: &str, name: &str) -> bool {
    path.is_empty() && matches!(name, "apiVersion" | "kind")
}

/// On failure, `path` is the path of the value, and the error is the expected type.
fn check(value: &Value, form: &Form, path: &mut String) -> Result<(), &'static str> {
    let whole = |value: &Value| {
        value.as_i64().is_some()
            || value.as_u64().is_some()
            || value.as_f64().is_some_and(|n| n.fract() == 0.0)
    };
    let scalar = |fits: bool, wanted: &'static str| if fits { Ok(()) } else { Err(wanted) };
    if value.is_null() {
        return Ok(());
    }
    match form {
        Form::Text => scalar(value.is_string(), "string"),
        Form::Bytes => scalar(value.is_string(), "[]uint8"),
        Form::Time | Form::MicroTime => scalar(value.is_string(), "Time"),
        Form::Bool => scalar(value.is_boolean(), "bool"),
        Form::Integer => scalar(whole(value), "int64"),
        Form::Double => scalar(value.is_number(), "float64"),
        Form::Quantity => scalar(value.is_string() || value.is_number(), "Quantity"),
        Form::IntOrString => scalar(value.is_string() || whole(value), "IntOrString"),
        Form::Raw => Ok(()),
        Form::Items => check_list(value, &Form::Text, path),
        Form::List(item) => check_list(value, item, path),
        Form::Map(item) => {
            let fields = value.as_object().ok_or("map")?;
            fields.iter().try_for_each(|(name, value)| below(value, item, name, path))
        }
        Form::Message(of) => {
            let fields = value.as_object().ok_or("struct")?;
            for (name, value) in fields {
                if let Some(form) = form_of(*of, name) {
                    below(value, form, name, path)?;
                }
            }
            Ok(())
        }
    }
}

fn check_list(value: &Value, item: &Form, path: &mut String) -> Result<(), &'static str> {
    for (at, value) in value.as_array().ok_or("slice")?.iter().enumerate() {
        let end = path.len();
        path.push_str(&format!("[{at}]"));
        check(value, item, path)?;
        path.truncate(end);
    }
    Ok(())
}

fn below(value: &Value, form: &Form, name: &str, path: &mut String) -> Result<(), &'static str> {
    let end = descend(path, name);
    check(value, form, path)?;
    path.truncate(end);
    Ok(())
}

/// `path` is the path of the value; one buffer is used for all levels, because a key can be megabytes long.
fn prune_value(value: &mut Value, form: &Form, path: &mut String, unknown: &mut Vec<String>) {
    match (form, value) {
        (Form::List(item), Value::Array(items)) if nests(item) => {
            for (at, value) in items.iter_mut().enumerate() {
                let end = path.len();
                path.push_str(&format!("[{at}]"));
                prune_value(value, item, path, unknown);
                path.truncate(end);
            }
        }
        (Form::Map(item), Value::Object(fields)) if nests(item) => {
            for (name, value) in fields {
                let end = descend(path, name);
                prune_value(value, item, path, unknown);
                path.truncate(end);
            }
        }
        (Form::Message(of), Value::Object(fields)) => {
            fields.retain(|name, value| match form_of(*of, name) {
                Some(form) => {
                    if nests(form) {
                        let end = descend(path, name);
                        prune_value(value, form, path, unknown);
                        path.truncate(end);
                    }
                    true
                }
                None if is_type_meta(path, name) => true,
                None => {
                    if unknown.len() < STRICT_ERRORS {
                        let end = descend(path, name);
                        unknown.push(shortened(path));
                        path.truncate(end);
                    }
                    false
                }
            });
        }
        _ => {}
    }
}

/// Appends a field and returns the previous length of the path.
fn descend(path: &mut String, name: &str) -> usize {
    let end = path.len();
    if end > 0 {
        path.push('.');
    }
    path.push_str(name);
    end
}

/// Whether the form can contain fields.
fn nests(form: &Form) -> bool {
    matches!(form, Form::Message(_) | Form::List(_) | Form::Map(_))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_dropped_and_reported() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "nope": 1, "metadata": {"name": "x", "labels": {"any": "thing"}, "bad": 1},
            "spec": {"containers": [{"name": "c", "image": "i", "Image": "j"}], "volumes": [{"name": "v", "emptyDir": {"x": 1}}]},
        });
        let mut unknown = prune(&mut pod);
        unknown.sort();
        assert_eq!(
            unknown,
            ["metadata.bad", "nope", "spec.containers[0].Image", "spec.volumes[0].emptyDir.x"]
        );
        let clean = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": {"any": "thing"}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "emptyDir": {}}]},
        });
        assert_eq!(pod, clean);
    }

    #[test]
    fn wrong_types_are_rejected_with_their_path() {
        let object = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
        let container =
            |field: &str, value: Value| object(json!({"containers": [{"name": "c", field: value}]}));
        for good in [
            container("resources", json!({"limits": {"cpu": 1, "memory": "1Gi"}})),
            container("livenessProbe", json!({"httpGet": {"port": "http"}, "periodSeconds": 10})),
            container("command", Value::Null),
        ] {
            check_types(&good).unwrap();
        }
        let status = check_types(&container("command", json!("sh"))).unwrap_err();
        assert!(status.contains("spec.containers[0].command of type slice"), "{status}");
        for bad in [
            object(json!([])),
            object(json!({"nodeName": 3})),
            object(json!({"hostNetwork": "yes"})),
            object(json!({"priority": "high"})),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": 1}}),
        ] {
            assert!(check_types(&bad).is_err(), "{bad}");
        }
    }
}
