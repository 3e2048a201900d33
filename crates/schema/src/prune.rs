//! Drops fields that the schema does not declare, and returns their paths.

use serde_json::{Map, Value};

use crate::error::head;
use crate::structural::{Additional, Structural};

/// How many dropped fields are reported, as upstream does, and how much of each path.
const MAX_FIELDS: usize = 100;
const PATH_BYTES: usize = 1 << 10;

/// The fields of ObjectMeta; others inside `metadata` of a resource are dropped.
pub const OBJECT_META_FIELDS: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Prunes a whole resource and returns the paths of the dropped fields, like `spec.x` or `spec.list[0].y`.
///
/// `apiVersion`, `kind` and the known fields of `metadata` are always kept, in the root and in embedded resources.
pub fn prune(object: &mut Value, schema: &Structural) -> Vec<String> {
    prune_value(object, schema, true)
}

/// [`prune`] for a value at any position in the schema.
pub(crate) fn prune_value(value: &mut Value, schema: &Structural, root: bool) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.walk(value, Some(schema), root);
    pruner.unknown
}

struct Pruner {
    path: String,
    unknown: Vec<String>,
}

impl Pruner {
    /// Without a schema (below `additionalProperties: true` or an untyped list), all fields of objects are unknown.
    fn walk(&mut self, value: &mut Value, schema: Option<&Structural>, root: bool) {
        match value {
            Value::Object(object) => self.object(object, schema, root),
            Value::Array(list) => {
                let preserve = schema.is_some_and(|s| s.preserve_unknown_fields);
                let items = schema.and_then(|s| s.items.as_deref());
                if preserve && items.is_none() {
                    return;
                }
                for (i, item) in list.iter_mut().enumerate() {
                    // Scalars have nothing to prune; skip the path for long lists of them.
                    if item.is_object() || item.is_array() {
                        self.descend(&format!("[{i}]"), |p| p.walk(item, items, false));
                    }
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, object: &mut Map<String, Value>, schema: Option<&Structural>, root: bool) {
        let resource = root || schema.is_some_and(|s| s.embedded_resource);
        let preserve = schema.is_some_and(|s| s.preserve_unknown_fields);
        let additional = schema.is_some_and(|s| !matches!(s.additional, Additional::Unset));
        let mut dropped = Vec::new();
        for (name, value) in object.iter_mut() {
            if resource && name == "metadata" {
                self.child(name, |p| p.metadata(value));
                continue;
            }
            if resource && (name == "apiVersion" || name == "kind") {
                continue;
            }
            let property = schema.and_then(|s| s.property(name));
            if property.is_some() || additional {
                if value.is_object() || value.is_array() {
                    self.child(name, |p| p.walk(value, property, false));
                }
            } else if !preserve {
                dropped.push(name.clone());
            }
        }
        for name in dropped {
            object.remove(&name);
            self.child(&name, Self::note);
        }
    }

    fn metadata(&mut self, metadata: &mut Value) {
        let Value::Object(fields) = metadata else { return };
        let dropped: Vec<_> =
            fields.keys().filter(|k| !OBJECT_META_FIELDS.contains(&k.as_str())).cloned().collect();
        for name in dropped {
            fields.remove(&name);
            self.child(&name, Self::note);
        }
    }

    /// Records the current field. A key can be megabytes long, and there can be a million of them.
    fn note(&mut self) {
        if self.unknown.len() < MAX_FIELDS {
            self.unknown.push(head(&self.path, PATH_BYTES).to_owned());
        }
    }

    fn child(&mut self, name: &str, f: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        f(self);
        self.path.truncate(length);
    }

    fn descend(&mut self, suffix: &str, f: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(suffix);
        f(self);
        self.path.truncate(length);
    }
}
