//! `PartialObjectMetadata`: an object's metadata alone.

use serde_json::{Value, json};

/// The metadata of `object` in the kind that metadata-only clients ask for.
pub fn partial_object_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_default(),
    })
}
