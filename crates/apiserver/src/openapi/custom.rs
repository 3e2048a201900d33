//! Schemas of custom resources for publication.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{OBJECT_META, gvk};
use super::reference;
use crate::crd::CustomKind;
use crate::object::object_mut;
use crate::resources::Resource;

/// `com.example.v1.Kind` for group `example.com`.
pub(super) fn component_name(resource: &Resource) -> String {
    let def = &resource.def;
    let group: Vec<&str> = def.group.split('.').rev().filter(|p| !p.is_empty()).collect();
    match group.is_empty() {
        true => format!("io.k8s.api.core.{}.{}", def.version, def.kind),
        false => format!("{}.{}.{}", group.join("."), def.version, def.kind),
    }
}

/// Adds the component of a custom resource and returns its name.
pub(super) fn schema(
    resource: &Resource,
    kind: &CustomKind,
    schemas: &mut BTreeMap<String, Value>,
) -> String {
    let mut schema = kind.open_api.clone();
    let object = object_mut(&mut schema);
    object.insert("type".to_owned(), "object".into());
    object.insert("x-kubernetes-group-version-kind".to_owned(), json!([gvk(resource)]));
    let properties = object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    type_meta(object_mut(properties));
    embedded(&mut schema);
    let name = component_name(resource);
    schemas.insert(name.clone(), schema);
    name
}

/// apiVersion, kind and metadata, as in every resource.
fn type_meta(properties: &mut Map<String, Value>) {
    let describe = |text: &str| json!({"description": text, "type": "string"});
    properties.insert(
        "apiVersion".to_owned(),
        describe("APIVersion defines the versioned schema of this representation of an object."),
    );
    properties.insert(
        "kind".to_owned(),
        describe("Kind is a string value representing the REST resource this object represents."),
    );
    properties.insert(
        "metadata".to_owned(),
        json!({"description": "Standard object's metadata.", "default": {}, "allOf": [reference(OBJECT_META)]}),
    );
}

/// Embedded resources have the same three fields, independent of the CRD's declaration.
fn embedded(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    if object.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        let properties = object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        type_meta(object_mut(properties));
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(embedded);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(below) = object.get_mut(key) {
            embedded(below);
        }
    }
}
