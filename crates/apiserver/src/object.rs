//! Objects as JSON values: access to metadata, and encoding with a placeholder for the revision.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::storage::Encoded;

/// Accessors for the metadata of an object in JSON form. Missing or mistyped fields count as empty.
pub trait ObjectExt {
    /// A string in `metadata`, empty when absent.
    fn meta_str(&self, field: &str) -> &str;
    /// `metadata`, created when absent.
    fn metadata_mut(&mut self) -> &mut Map<String, Value>;
    /// Sets or, for an empty value, removes a string in `metadata`.
    fn set_meta_str(&mut self, field: &str, value: &str);
    /// A string at the top level, empty when absent.
    fn top_str(&self, field: &str) -> &str;
    /// The strings of a list in `metadata`.
    fn meta_list(&self, field: &str) -> Vec<&str>;

    /// `metadata.name`.
    fn name(&self) -> &str {
        self.meta_str("name")
    }
    /// `metadata.namespace`.
    fn namespace(&self) -> &str {
        self.meta_str("namespace")
    }
    /// `metadata.uid`.
    fn uid(&self) -> &str {
        self.meta_str("uid")
    }
    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }
    /// Whether `metadata.deletionTimestamp` is set.
    fn is_deleting(&self) -> bool {
        !self.meta_str("deletionTimestamp").is_empty()
    }
    /// `metadata.finalizers`.
    fn finalizers(&self) -> Vec<&str> {
        self.meta_list("finalizers")
    }
    /// `kind`.
    fn kind(&self) -> &str {
        self.top_str("kind")
    }
    /// `apiVersion`.
    fn api_version(&self) -> &str {
        self.top_str("apiVersion")
    }
}

impl ObjectExt for Value {
    fn meta_str(&self, field: &str) -> &str {
        self.get("metadata").and_then(|meta| meta.get(field)).and_then(Value::as_str).unwrap_or_default()
    }

    fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        object_mut(object_mut(self).entry("metadata").or_insert(Value::Null))
    }

    fn set_meta_str(&mut self, field: &str, value: &str) {
        let metadata = self.metadata_mut();
        if value.is_empty() {
            metadata.remove(field);
        } else {
            metadata.insert(field.to_owned(), Value::from(value));
        }
    }

    fn top_str(&self, field: &str) -> &str {
        self.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn meta_list(&self, field: &str) -> Vec<&str> {
        let list = self.get("metadata").and_then(|meta| meta.get(field)).and_then(Value::as_array);
        list.map(|items| items.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }
}

/// Returns the value as an object; replaces any other value by an empty object.
pub fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // It is an object, see above.
        _ => unreachable!(),
    }
}

/// The value at a path of keys.
pub fn at_path<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// Sets the value at a path of keys, and creates missing objects.
pub fn set_path(value: &mut Value, path: &[String], to: Value) {
    let slot =
        path.iter().fold(value, |value, key| object_mut(value).entry(key.clone()).or_insert(Value::Null));
    *slot = to;
}

/// Encodes an object, with a placeholder for the digits of `resourceVersion` at the end of its metadata.
pub fn encode(object: &Value) -> Encoded {
    let mut out = Vec::with_capacity(512);
    let mut hole = 0;
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    out.push(b'{');
    // The type comes first, so that readers that look for it (kubectl, kube) can stop there.
    for field in ["apiVersion", "kind"] {
        if let Some(value) = fields.get(field) {
            write_field(&mut out, field, value);
        }
    }
    separate(&mut out);
    out.extend_from_slice(b"\"metadata\":{");
    let metadata = fields.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
        write_field(&mut out, key, value);
    }
    separate(&mut out);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    hole += out.len();
    out.extend_from_slice(b"\"}");
    for (key, value) in
        fields.iter().filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata"))
    {
        write_field(&mut out, key, value);
    }
    out.push(b'}');
    // An object is limited to a few MiB, far below 4 GiB.
    Encoded { json: Bytes::from(out), hole: hole as u32 }
}

fn separate(out: &mut Vec<u8>) {
    if out.last().is_some_and(|last| *last != b'{') {
        out.push(b',');
    }
}

fn write_field(out: &mut Vec<u8>, key: &str, value: &Value) {
    separate(out);
    // Writing JSON values into a Vec cannot fail: keys are strings and the sink is memory.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(&mut *out, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::storage::{Key, Version};

    #[test]
    fn the_revision_is_inserted_and_replaced() {
        let object = json!({"kind": "A", "apiVersion": "v1", "metadata": {"name": "x", "resourceVersion": "7"}, "spec": {"a": "}\""}});
        let version = Version::splice(Key::new("", "as", "", "x"), 42, 42, &encode(&object));
        let decoded = version.decode();
        assert_eq!(decoded.resource_version(), "42");
        assert_eq!(decoded["spec"], object["spec"]);
        assert_eq!(version.at_revision(1234).decode().resource_version(), "1234");
        assert_eq!(&*version.meta().name, "x");
    }

    #[test]
    fn objects_without_metadata_get_metadata() {
        let version = Version::splice(Key::new("", "as", "", "x"), 1, 1, &encode(&json!({})));
        assert_eq!(version.decode(), json!({"metadata": {"resourceVersion": "1"}}));
    }
}
