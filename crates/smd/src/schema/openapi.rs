//! Types from structural OpenAPI schemas of CustomResourceDefinitions.

use std::sync::Arc;

use serde_json::{Map as JsonMap, Value};

use super::{Atom, Field, List, ListKind, Map, PatchStrategy, Scalar, Schema, TypeId};

impl Schema {
    /// Adds the type of a custom resource with this `openAPIV3Schema`. `object_meta` is the type of metadata, also in
    /// embedded resources. Formats and value validations are ignored.
    pub fn add_custom_resource(&mut self, openapi: &Value, object_meta: TypeId) -> TypeId {
        let mut convert = Convert { schema: self, object_meta };
        convert.atom_id(openapi, false, true)
    }

    /// Adds the type of `metadata`, which is the same for all objects.
    pub fn add_object_meta(&mut self) -> TypeId {
        let string = self.scalar(Scalar::String);
        let numeric = self.scalar(Scalar::Numeric);
        let boolean = self.scalar(Scalar::Boolean);
        let untyped = self.scalar(Scalar::Untyped);
        let strings = self.map(Map::new(Vec::new(), Some(string), false));
        let set = self.list(string, ListKind::Set);
        let owner = ["apiVersion", "kind", "name", "uid"].map(|name| Field::new(name, string));
        let flags = ["blockOwnerDeletion", "controller"].map(|name| Field::new(name, boolean));
        let owner = self.map(Map::new(owner.into_iter().chain(flags).collect(), None, true));
        let owners = self.list(owner, ListKind::Map(Arc::from([Arc::from("uid")])));
        let managed = self.list(TypeId::UNTYPED_ATOMIC, ListKind::Atomic);
        let mut fields = vec![
            Field::new("annotations", strings),
            Field::new("creationTimestamp", untyped),
            Field::new("deletionGracePeriodSeconds", numeric),
            Field::new("deletionTimestamp", untyped),
            Field::new("finalizers", set),
            Field::new("generation", numeric),
            Field::new("labels", strings),
            Field { untracked: true, ..Field::new("managedFields", managed) },
            Field::new("ownerReferences", owners),
        ];
        for name in ["generateName", "name", "namespace", "resourceVersion", "selfLink", "uid"] {
            fields.push(Field::new(name, string));
        }
        self.map(Map::new(fields, None, false))
    }
}

struct Convert<'s> {
    schema: &'s mut Schema,
    object_meta: TypeId,
}

impl Convert<'_> {
    /// `resource`: the schema of a whole object, at the root or embedded.
    fn atom_id(&mut self, openapi: &Value, preserve: bool, resource: bool) -> TypeId {
        let preserve = preserve || flag(openapi, "x-kubernetes-preserve-unknown-fields");
        let resource = resource || flag(openapi, "x-kubernetes-embedded-resource");
        let scalar = |scalar| Atom { scalar: Some(scalar), ..Atom::default() };
        let atom = match openapi.get("type").and_then(Value::as_str) {
            Some("object") => Atom { map: Some(self.map(openapi, preserve, resource)), ..Atom::default() },
            Some("array") => Atom { list: Some(self.list(openapi, preserve)), ..Atom::default() },
            Some("integer" | "number") => scalar(Scalar::Numeric),
            Some("string") => scalar(Scalar::String),
            Some("boolean") => scalar(Scalar::Boolean),
            // A schema without type allows any value (for example int-or-string).
            _ => Atom {
                scalar: Some(Scalar::Untyped),
                list: Some(self.list(openapi, preserve)),
                map: Some(self.map(openapi, preserve, resource)),
            },
        };
        self.schema.add(atom)
    }

    fn map(&mut self, openapi: &Value, preserve: bool, resource: bool) -> Map {
        let none = JsonMap::new();
        let properties = openapi.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let mut fields = Vec::with_capacity(properties.len() + 3);
        for (name, property) in properties {
            if resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            let ty = self.atom_id(property, preserve, false);
            let default = property.get("default").filter(|default| !default.is_null()).cloned();
            fields.push(Field { default, patch: patch_strategy(property), ..Field::new(name, ty) });
        }
        if resource {
            let string = self.schema.scalar(Scalar::String);
            fields.push(Field::new("apiVersion", string));
            fields.push(Field::new("kind", string));
            fields.push(Field::new("metadata", self.object_meta));
        }
        let element = match openapi.get("additionalProperties") {
            Some(schema @ Value::Object(_)) => Some(self.atom_id(schema, preserve, false)),
            Some(Value::Bool(allowed)) => allowed.then_some(TypeId::DEDUCED),
            _ if preserve || fields.is_empty() => Some(TypeId::DEDUCED),
            _ => None,
        };
        Map::new(fields, element, text(openapi, "x-kubernetes-map-type") == "atomic")
    }

    fn list(&mut self, openapi: &Value, preserve: bool) -> List {
        let element = match openapi.get("items") {
            Some(items @ Value::Object(_)) => self.atom_id(items, preserve, false),
            _ => TypeId::UNTYPED_ATOMIC,
        };
        let kind = match text(openapi, "x-kubernetes-list-type") {
            "set" => ListKind::Set,
            "map" => {
                let keys = openapi.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(Arc::from);
                ListKind::Map(keys.collect())
            }
            _ => ListKind::Atomic,
        };
        List { element, kind }
    }
}

/// Only schemas of built-in kinds have a patch strategy.
fn patch_strategy(openapi: &Value) -> PatchStrategy {
    let strategy = text(openapi, "x-kubernetes-patch-strategy");
    let has = |name| strategy.split(',').any(|word| word == name);
    match text(openapi, "x-kubernetes-patch-merge-key") {
        _ if has("replace") => PatchStrategy::Replace,
        _ if !has("merge") => PatchStrategy::Default,
        "" => PatchStrategy::MergeSet,
        key => PatchStrategy::MergeBy(key.into()),
    }
}

fn flag(openapi: &Value, name: &str) -> bool {
    openapi.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn text<'v>(openapi: &'v Value, name: &str) -> &'v str {
    openapi.get(name).and_then(Value::as_str).unwrap_or_default()
}
