//! `PartialObjectMetadata`: only the metadata of an object.

use serde_json::{Value, json};

/// The metadata of `object` as `PartialObjectMetadata`.
pub fn partial_object_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_default(),
    })
}
