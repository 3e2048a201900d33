//! The checks that a schema is structural, and the checks of extensions and defaults, with upstream's field paths.

use serde_json::Value;

use super::{Additional, ListType, MapType, Nested, Structural, Type, ValueValidation};
use crate::error::FieldError;
use crate::path::Path;
use crate::{default, prune, validate};

/// The position of a node; some checks depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks the whole tree; the errors are sorted by text, as upstream does.
pub fn check(schema: &Structural, path: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, path, &mut errors);
    if let Some(value) = &schema.value {
        completeness(value, schema, path, path, &mut errors);
    }
    defaults(schema, true, path, &mut errors);
    errors.sort_by_key(ToString::to_string);
    errors
}

fn invariants(s: &Structural, level: Level, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if s.kind == Some(Type::Array) && s.items.is_none() {
        errors.push(FieldError::required(&path.child("items"), "must be specified"));
    }
    if let Some(items) = &s.items {
        invariants(items, Level::Item, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in &s.properties {
        invariants(property, Level::Field, &properties.key(name), errors);
    }
    if !matches!(s.additional, Additional::Unset) {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&at, "must not be used at the root"));
        }
        if !s.properties.is_empty() {
            errors
                .push(FieldError::forbidden(&at, "additionalProperties and properties are mutual exclusive"));
        }
        if matches!(s.additional, Additional::Allowed(false)) {
            errors.push(FieldError::forbidden(&at, "additionalProperties cannot be set to false"));
        }
        if s.embedded_resource {
            errors.push(FieldError::forbidden(
                &at,
                "must not be used if x-kubernetes-embedded-resource is set",
            ));
        }
        if let Some(schema) = s.additional.schema() {
            invariants(schema, Level::Field, &at, errors);
        }
    }
    extensions(s, path, errors);
    if let Some(value) = &s.value {
        let any_of = is_int_or_string(&value.any_of);
        let all_of = value.all_of.first().is_some_and(|n| is_int_or_string(&n.value.any_of));
        value_validation(value, any_of, all_of, path, errors);
    }
    types(s, level, path, errors);
    metadata(s, level, path, errors);
}

fn types(s: &Structural, level: Level, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let at = path.child("type");
    let kind = s.kind.map(Type::name);
    if s.embedded_resource && s.kind != Some(Type::Object) {
        let text = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            None => FieldError::required(&at, text),
            Some(kind) => FieldError::invalid(&at, kind, text),
        });
    } else if s.kind.is_none() && !s.int_or_string && !s.preserve_unknown_fields {
        errors.push(FieldError::required(
            &at,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ));
    }
    if level == Level::Root
        && let Some(kind) = kind
        && kind != "object"
    {
        errors.push(FieldError::invalid(&at, kind, "must be object at the root"));
    }
    if s.embedded_resource && !s.preserve_unknown_fields && s.properties.is_empty() {
        errors.push(FieldError::required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
}

fn metadata(s: &Structural, level: Level, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if level != Level::Root && !s.embedded_resource {
        return;
    }
    let properties = path.child("properties");
    for name in ["apiVersion", "kind"] {
        if let Some(property) = s.properties.get(name)
            && property.kind != Some(Type::String)
        {
            let kind = property.kind.map_or("", Type::name);
            let at = properties.key(name);
            errors.push(FieldError::invalid(&at.child("type"), kind, "must be string"));
        }
    }
    let Some(metadata) = s.properties.get("metadata") else { return };
    let at = properties.key("metadata");
    if metadata.kind != Some(Type::Object) {
        let kind = metadata.kind.map_or("", Type::name);
        errors.push(FieldError::invalid(&at.child("type"), kind, "must be object"));
    }
    let only_names = metadata.properties.keys().all(|k| k == "name" || k == "generateName");
    let bare = metadata.value.is_none()
        && metadata.rules.is_empty()
        && !metadata.nullable
        && !metadata.preserve_unknown_fields
        && !metadata.embedded_resource
        && !metadata.int_or_string
        && metadata.items.is_none()
        && metadata.list_type.is_none()
        && metadata.map_type.is_none()
        && matches!(metadata.additional, Additional::Unset);
    if level == Level::Root && !(only_names && bare) {
        errors.push(FieldError::forbidden(
            &at,
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

fn extensions(s: &Structural, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if s.int_or_string {
        let text = "must be false if x-kubernetes-int-or-string is true";
        if s.preserve_unknown_fields {
            errors.push(FieldError::invalid(&path.child("x-kubernetes-preserve-unknown-fields"), true, text));
        }
        if s.embedded_resource {
            errors.push(FieldError::invalid(&path.child("x-kubernetes-embedded-resource"), true, text));
        }
    }
    if s.preserve_unknown_fields && s.kind.is_some_and(|k| k != Type::Object) {
        errors.push(FieldError::invalid(
            &path.child("x-kubernetes-preserve-unknown-fields"),
            true,
            "must be object if x-kubernetes-preserve-unknown-fields is true",
        ));
    }
    if s.map_type.is_some() && s.kind != Some(Type::Object) {
        errors.push(FieldError::invalid(
            &path.child("type"),
            s.kind.map_or("", Type::name),
            "must be object if x-kubernetes-map-type is specified",
        ));
    }
    match s.list_type {
        None => {
            if !s.list_map_keys.is_empty() {
                errors.push(FieldError::required(
                    &path.child("x-kubernetes-list-type"),
                    "must be map if x-kubernetes-list-map-keys is non-empty",
                ));
            }
            return;
        }
        Some(_) if s.kind != Some(Type::Array) => {
            errors.push(FieldError::invalid(
                &path.child("type"),
                s.kind.map_or("", Type::name),
                "must be array if x-kubernetes-list-type is specified",
            ));
            return;
        }
        _ => {}
    }
    list(s, path, errors);
}

fn list(s: &Structural, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(items) = s.items.as_deref() else { return };
    let items_at = path.child("items");
    if s.list_type == Some(ListType::Set) {
        let text = "must be {} as item of a list of type set";
        if items.nullable {
            errors.push(FieldError::forbidden(
                &items_at.child("nullable"),
                "cannot be nullable when x-kubernetes-list-type is set",
            ));
        }
        match items.kind {
            Some(Type::Array) if items.list_type.is_none_or(|t| t != ListType::Atomic) => {
                let at = items_at.child("x-kubernetes-list-type");
                errors.push(FieldError::invalid(&at, Value::Null, text.replace("{}", "atomic")));
            }
            Some(Type::Object) if items.map_type != Some(MapType::Atomic) => {
                let at = items_at.child("x-kubernetes-map-type");
                errors.push(FieldError::invalid(&at, Value::Null, text.replace("{}", "atomic")));
            }
            _ => {}
        }
    }
    if s.list_type != Some(ListType::Map) {
        if !s.list_map_keys.is_empty() {
            errors.push(FieldError::required(
                &path.child("x-kubernetes-list-type"),
                "must be map if x-kubernetes-list-map-keys is non-empty",
            ));
        }
        return;
    }
    if items.kind != Some(Type::Object) {
        errors.push(FieldError::invalid(
            &items_at.child("type"),
            items.kind.map_or("", Type::name),
            "must be object if parent array's x-kubernetes-list-type is map",
        ));
    }
    let keys_at = path.child("x-kubernetes-list-map-keys");
    if s.list_map_keys.is_empty() {
        errors.push(FieldError::required(&keys_at, "must not be empty if x-kubernetes-list-type is map"));
    }
    for (i, key) in s.list_map_keys.iter().enumerate() {
        if s.list_map_keys[..i].contains(key) {
            errors.push(FieldError::duplicate(&keys_at.index(i), key.as_str()));
        }
        let properties = items_at.child("properties");
        let at = properties.key(key);
        let Some(property) = items.properties.get(key) else {
            errors.push(FieldError::invalid(
                &keys_at.index(i),
                key.as_str(),
                "entries must all be names of item properties",
            ));
            continue;
        };
        if matches!(property.kind, Some(Type::Object | Type::Array)) {
            errors.push(FieldError::invalid(
                &at.child("type"),
                property.kind.map_or("", Type::name),
                "must be a scalar type if parent array's x-kubernetes-list-type is map",
            ));
        }
        let required = items.value.as_ref().is_some_and(|v| v.required.contains(key));
        if !required && property.default.is_none() {
            errors.push(FieldError::required(
                &at.child("default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ));
        }
        if property.nullable {
            errors.push(FieldError::forbidden(
                &at.child("nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ));
        }
    }
}

/// The only place where types are allowed below a quantifier: `anyOf: [{type: integer}, {type: string}]`.
fn is_int_or_string(any_of: &[Nested]) -> bool {
    let bare = |n: &Nested, kind| {
        n.kind == Some(kind)
            && n.value.is_empty()
            && n.items.is_none()
            && n.properties.is_empty()
            && n.forbidden.is_empty()
    };
    matches!(any_of, [a, b] if bare(a, Type::Integer) && bare(b, Type::String))
}

fn value_validation(
    v: &ValueValidation,
    skip_any_of: bool,
    skip_first_all_of: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if !skip_any_of {
        let at = path.child("anyOf");
        v.any_of.iter().enumerate().for_each(|(i, n)| nested(n, false, &at.index(i), errors));
    }
    let at = path.child("allOf");
    v.all_of
        .iter()
        .enumerate()
        .for_each(|(i, n)| nested(n, skip_first_all_of && i == 0, &at.index(i), errors));
    let at = path.child("oneOf");
    v.one_of.iter().enumerate().for_each(|(i, n)| nested(n, false, &at.index(i), errors));
    if let Some(not) = &v.not {
        nested(not, false, &path.child("not"), errors);
    }
}

fn nested(n: &Nested, skip_any_of: bool, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    value_validation(&n.value, skip_any_of, false, path, errors);
    if let Some(items) = &n.items {
        nested(items, false, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in &n.properties {
        nested(property, false, &properties.key(name), errors);
    }
    if n.kind.is_some() {
        errors.push(FieldError::forbidden(&path.child("type"), "must be empty to be structural"));
    }
    for (key, text) in &n.forbidden {
        errors.push(FieldError::forbidden(&path.child(key), *text));
    }
    if n.properties.contains_key("metadata") {
        errors.push(FieldError::forbidden(
            &properties.key("metadata"),
            "must not be specified in a nested context",
        ));
    }
}

/// Every field that a quantifier restricts must be declared in the structure.
fn completeness(
    v: &ValueValidation,
    s: &Structural,
    s_path: &Path<'_>,
    v_path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for (key, list) in [("allOf", &v.all_of), ("anyOf", &v.any_of), ("oneOf", &v.one_of)] {
        let at = v_path.child(key);
        for (i, n) in list.iter().enumerate() {
            nested_completeness(n, s, s_path, &at.index(i), errors);
        }
    }
    if let Some(not) = &v.not {
        nested_completeness(not, s, s_path, &v_path.child("not"), errors);
    }
}

fn nested_completeness(
    n: &Nested,
    s: &Structural,
    s_path: &Path<'_>,
    v_path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    completeness(&n.value, s, s_path, v_path, errors);
    if let Some(items) = &n.items {
        let (s_at, v_at) = (s_path.child("items"), v_path.child("items"));
        match s.items.as_deref() {
            Some(structural) => nested_completeness(items, structural, &s_at, &v_at, errors),
            None => errors.push(FieldError::required(&s_at, format!("because it is defined in {v_at}"))),
        }
    }
    let (s_properties, v_properties) = (s_path.child("properties"), v_path.child("properties"));
    for (name, property) in &n.properties {
        let (s_at, v_at) = (s_properties.key(name), v_properties.key(name));
        match s.properties.get(name) {
            Some(structural) => nested_completeness(property, structural, &s_at, &v_at, errors),
            None => errors.push(FieldError::required(&s_at, format!("because it is defined in {v_at}"))),
        }
    }
}

/// Defaults must be valid and must not contain unknown fields.
fn defaults(s: &Structural, root: bool, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(value) = &s.default {
        let at = path.child("default");
        let mut pruned = value.clone();
        let unknown = prune::prune_value(&mut pruned, s, root);
        if !unknown.is_empty() {
            errors.push(FieldError::invalid(&at, value.clone(), "must not have unknown fields"));
        } else {
            let mut defaulted = value.clone();
            let _ = default::default(&mut defaulted, s);
            errors.extend(validate::validate_at(&defaulted, s, &at));
        }
    }
    if let Some(items) = &s.items {
        defaults(items, false, &path.child("items"), errors);
    }
    if let Some(schema) = s.additional.schema() {
        defaults(schema, false, &path.child("additionalProperties"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in &s.properties {
        defaults(property, false, &properties.key(name), errors);
    }
}
