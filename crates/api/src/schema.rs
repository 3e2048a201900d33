//! Schemas of Kubernetes types, in the form in which controller-gen publishes them.
//!
//! The types of k8s-openapi lack the list and map markers that server-side apply requires.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// `metav1.LabelSelector`.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": {
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": { "type": "string" },
                        },
                    },
                },
            },
        },
    })
}

/// `[]metav1.Condition`, one entry per type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": { "type": "string", "maxLength": 32768 },
            },
        },
    })
}

/// `corev1.ObjectReference`.
pub(crate) fn object_reference(_: &mut SchemaGenerator) -> Schema {
    let string = json!({ "type": "string" });
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "apiVersion": string, "kind": string, "name": string, "namespace": string,
            "fieldPath": string, "resourceVersion": string, "uid": string,
        },
    })
}

/// `[]corev1.Taint`.
pub(crate) fn taints(generator: &mut SchemaGenerator) -> Schema {
    list_of::<k8s_openapi::api::core::v1::Taint>(generator)
}

/// `[]corev1.Toleration`.
pub(crate) fn tolerations(generator: &mut SchemaGenerator) -> Schema {
    list_of::<k8s_openapi::api::core::v1::Toleration>(generator)
}

/// `corev1.Affinity`.
pub(crate) fn affinity(generator: &mut SchemaGenerator) -> Schema {
    built_in::<k8s_openapi::api::core::v1::Affinity>(generator)
}

/// `corev1.ResourceRequirements`.
pub(crate) fn resource_requirements(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = built_in::<k8s_openapi::api::core::v1::ResourceRequirements>(generator);
    if let Some(claims) = schema.pointer_mut("/properties/claims").and_then(Value::as_object_mut) {
        claims.insert("x-kubernetes-list-type".into(), json!("map"));
        claims.insert("x-kubernetes-list-map-keys".into(), json!(["name"]));
    }
    schema
}

/// An object with arbitrary content.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// An arbitrary value.
pub(crate) fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

fn list_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let items = built_in::<T>(generator);
    json_schema!({ "type": "array", "items": items })
}

/// The schema of a k8s-openapi type, without descriptions and with lists marked atomic, as in Kubernetes.
fn built_in<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    if let Some(object) = schema.as_object_mut() {
        for (_, value) in object.iter_mut() {
            polish(value);
        }
        object.remove("description");
    }
    schema
}

fn polish(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.get("description").is_some_and(Value::is_string) {
                object.remove("description");
            }
            if object.get("type") == Some(&json!("array")) {
                object.insert("x-kubernetes-list-type".into(), json!("atomic"));
            }
            object.values_mut().for_each(polish);
        }
        Value::Array(values) => values.iter_mut().for_each(polish),
        _ => {}
    }
}
