//! Reads the JSON form of a CRD's `openAPIV3Schema`.

use serde_json::{Map, Value};

use super::{
    Additional, ListType, MapType, Nested, Pattern, Rule, Structural, Type, ValueValidation, patterns,
};
use crate::error::{FieldError, MAX_ERRORS};
use crate::path::Path;
use crate::validate::formats::Format;

type Object = Map<String, Value>;

/// Parses `schema`; reports what is unsupported or not allowed into `errors` and omits it.
pub fn parse(schema: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Structural {
    patterns::of_one_schema(|| node(schema, path, errors))
}

fn node(schema: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Structural {
    let empty = Object::new();
    let object = match schema {
        Value::Object(o) => o,
        other => {
            errors.push(FieldError::invalid(path, other.clone(), "must be an object"));
            &empty
        }
    };
    unsupported_keywords(object, path, errors);
    let kind = kind(object, path, errors);
    let items = items(object, path, errors).map(|v| Box::new(node(v, &path.child("items"), errors)));
    let additional = match object.get("additionalProperties") {
        None | Some(Value::Null) => Additional::Unset,
        Some(Value::Bool(b)) => Additional::Allowed(*b),
        Some(v) => Additional::Schema(Box::new(node(v, &path.child("additionalProperties"), errors))),
    };
    let mut properties = std::collections::BTreeMap::new();
    if let Some(declared) = get_object(object, "properties", path, errors) {
        let at = path.child("properties");
        for (name, value) in declared {
            properties.insert(name.clone(), node(value, &at.key(name), errors));
        }
    }
    let value = value_validation(object, path, errors);
    Structural {
        kind,
        nullable: flag(object, "nullable"),
        default: object.get("default").filter(|v| !v.is_null()).cloned(),
        properties,
        additional,
        items,
        preserve_unknown_fields: flag(object, "x-kubernetes-preserve-unknown-fields"),
        embedded_resource: flag(object, "x-kubernetes-embedded-resource"),
        int_or_string: flag(object, "x-kubernetes-int-or-string"),
        list_type: list_type(object, path, errors),
        list_map_keys: strings(object, "x-kubernetes-list-map-keys"),
        map_type: map_type(object, path, errors),
        rules: rules(object),
        value: (!value.is_empty()).then(|| Box::new(value)),
    }
}

fn unsupported_keywords(object: &Object, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["$ref", "definitions", "patternProperties", "dependencies", "additionalItems", "id"] {
        if object.get(key).is_some_and(|v| !v.is_null()) {
            let at = path.child(key);
            errors.push(FieldError::forbidden(&at, format!("{key} is not supported")));
        }
    }
    if flag(object, "uniqueItems") {
        errors.push(FieldError::forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
}

fn kind(object: &Object, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Option<Type> {
    let name = object.get("type")?.as_str()?;
    match name {
        "" => None,
        "object" => Some(Type::Object),
        "array" => Some(Type::Array),
        "string" => Some(Type::String),
        "integer" => Some(Type::Integer),
        "number" => Some(Type::Number),
        "boolean" => Some(Type::Boolean),
        "null" => {
            let at = path.child("type");
            errors.push(FieldError::forbidden(
                &at,
                "type cannot be set to null, use nullable as an alternative",
            ));
            None
        }
        other => {
            let supported = ["array", "boolean", "integer", "number", "object", "string"];
            errors.push(FieldError::not_supported(&path.child("type"), other, &supported));
            None
        }
    }
}

fn items<'v>(object: &'v Object, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Option<&'v Value> {
    match object.get("items") {
        None | Some(Value::Null) => None,
        Some(Value::Array(_)) => {
            errors.push(FieldError::forbidden(
                &path.child("items"),
                "items must be a schema object and not an array",
            ));
            None
        }
        Some(v) => Some(v),
    }
}

fn list_type(object: &Object, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Option<ListType> {
    match object.get("x-kubernetes-list-type")?.as_str()? {
        "atomic" => Some(ListType::Atomic),
        "set" => Some(ListType::Set),
        "map" => Some(ListType::Map),
        other => {
            let at = path.child("x-kubernetes-list-type");
            errors.push(FieldError::not_supported(&at, other, &["atomic", "map", "set"]));
            None
        }
    }
}

fn map_type(object: &Object, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Option<MapType> {
    match object.get("x-kubernetes-map-type")?.as_str()? {
        "atomic" => Some(MapType::Atomic),
        "granular" => Some(MapType::Granular),
        other => {
            let at = path.child("x-kubernetes-map-type");
            errors.push(FieldError::not_supported(&at, other, &["atomic", "granular"]));
            None
        }
    }
}

fn rules(object: &Object) -> Vec<Rule> {
    let Some(Value::Array(rules)) = object.get("x-kubernetes-validations") else { return Vec::new() };
    rules
        .iter()
        .map(|r| {
            let text = |key: &str| r.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            Rule {
                rule: text("rule"),
                message: text("message"),
                message_expression: text("messageExpression"),
                reason: r.get("reason").and_then(Value::as_str).map(str::to_owned),
                field_path: text("fieldPath"),
                optional_old_self: r.get("optionalOldSelf").and_then(Value::as_bool),
            }
        })
        .collect()
}

fn value_validation(object: &Object, path: &Path<'_>, errors: &mut Vec<FieldError>) -> ValueValidation {
    let number = |key: &str| match object.get(key) {
        Some(Value::Number(n)) => Some(n.clone()),
        _ => None,
    };
    let count = |key: &str| object.get(key).and_then(Value::as_u64);
    let pattern = match object.get("pattern").and_then(Value::as_str) {
        None | Some("") => None,
        // Further errors are not reported, so further patterns are not compiled.
        Some(_) if errors.len() > MAX_ERRORS => None,
        Some(source) => match patterns::compile(source) {
            Ok(regex) => Some(Pattern { source: source.to_owned(), regex }),
            Err(error) => {
                errors.push(FieldError::invalid(
                    &path.child("pattern"),
                    source,
                    format!("must be a valid regular expression, but isn't: {error}"),
                ));
                None
            }
        },
    };
    let nested_list = |key: &'static str, errors: &mut Vec<FieldError>| match object.get(key) {
        Some(Value::Array(list)) => {
            let at = path.child(key);
            list.iter().enumerate().map(|(i, v)| nested(v, &at.index(i), errors)).collect()
        }
        _ => Vec::new(),
    };
    ValueValidation {
        format: object.get("format").and_then(Value::as_str).and_then(Format::parse),
        maximum: number("maximum").map(|n| (n, flag(object, "exclusiveMaximum"))),
        minimum: number("minimum").map(|n| (n, flag(object, "exclusiveMinimum"))),
        max_length: count("maxLength"),
        min_length: count("minLength"),
        pattern,
        max_items: count("maxItems"),
        min_items: count("minItems"),
        multiple_of: number("multipleOf"),
        enumeration: object.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
        max_properties: count("maxProperties"),
        min_properties: count("minProperties"),
        required: strings(object, "required"),
        all_of: nested_list("allOf", errors),
        any_of: nested_list("anyOf", errors),
        one_of: nested_list("oneOf", errors),
        not: match object.get("not") {
            None | Some(Value::Null) => None,
            Some(v) => Some(Box::new(nested(v, &path.child("not"), errors))),
        },
    }
}

fn nested(schema: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Nested {
    let Value::Object(object) = schema else {
        errors.push(FieldError::invalid(path, schema.clone(), "must be an object"));
        return Nested::default();
    };
    unsupported_keywords(object, path, errors);
    let mut properties = std::collections::BTreeMap::new();
    if let Some(declared) = get_object(object, "properties", path, errors) {
        let at = path.child("properties");
        for (name, value) in declared {
            properties.insert(name.clone(), nested(value, &at.key(name), errors));
        }
    }
    Nested {
        value: value_validation(object, path, errors),
        items: items(object, path, errors).map(|v| Box::new(nested(v, &path.child("items"), errors))),
        properties,
        kind: kind(object, path, errors),
        forbidden: forbidden_in_nested(object),
    }
}

/// Structure must not be declared below a quantifier: pruning and defaulting could not follow it.
fn forbidden_in_nested(object: &Object) -> Vec<(&'static str, &'static str)> {
    const RULES: &[(&str, &str)] = &[
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    let says_nothing = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        _ => false,
    };
    RULES.iter().copied().filter(|(key, _)| object.get(*key).is_some_and(|v| !says_nothing(v))).collect()
}

fn get_object<'v>(
    object: &'v Object,
    key: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) -> Option<&'v Object> {
    match object.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::Object(o)) => Some(o),
        Some(other) => {
            errors.push(FieldError::invalid(&path.child(key), other.clone(), "must be an object"));
            None
        }
    }
}

fn flag(object: &Object, key: &str) -> bool {
    object.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn strings(object: &Object, key: &str) -> Vec<String> {
    let Some(Value::Array(list)) = object.get(key) else { return Vec::new() };
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
