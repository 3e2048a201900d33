//! Validates a value against a type.

use std::fmt::Write;

use serde_json::Value;
use thiserror::Error;

use super::items::Groups;
use crate::schema::{List, ListKind, Map, Scalar, Schema, Shape, Type, TypeId};

/// How to treat items of an associative list that have the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// As an error: in an applied configuration.
    Reject,
    /// Tolerated: in a stored object.
    Allow,
}

/// All errors of a value, as `(path, message)`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}", render(.0))]
pub struct Invalid(pub Vec<(String, String)>);

/// Checks that `value` matches `ty`; null matches every type.
pub fn validate(ty: Type<'_>, value: &Value, duplicates: Duplicates) -> Result<(), Invalid> {
    let mut walker = Walker { schema: ty.schema, duplicates, path: String::new(), errors: Vec::new() };
    walker.visit(ty.id, value);
    if walker.errors.is_empty() { Ok(()) } else { Err(Invalid(walker.errors)) }
}

struct Walker<'s> {
    schema: &'s Schema,
    duplicates: Duplicates,
    path: String,
    errors: Vec<(String, String)>,
}

impl Walker<'_> {
    fn visit(&mut self, ty: TypeId, value: &Value) {
        let schema = self.schema;
        match schema.atom(ty).shape_of(Some(value)) {
            _ if value.is_null() => {}
            Shape::Map(map) => self.visit_map(map, value),
            Shape::Scalar(scalar) => self.visit_scalar(scalar, value),
            Shape::List(list) => self.visit_list(list, value),
            Shape::Nothing => self.error("schema error: invalid atom".to_owned()),
        }
    }

    fn visit_scalar(&mut self, scalar: Scalar, value: &Value) {
        let (fits, expected) = match scalar {
            Scalar::Numeric => (value.is_number(), "numeric (int or float)"),
            Scalar::String => (value.is_string(), "string"),
            Scalar::Boolean => (value.is_boolean(), "boolean"),
            Scalar::Untyped => (!value.is_array() && !value.is_object(), "any scalar"),
        };
        if !fits {
            self.error(format!("expected {expected}, got {}", kind(value)));
        }
    }

    fn visit_map(&mut self, map: &Map, value: &Value) {
        let Value::Object(entries) = value else {
            return self.error(format!("expected map, got {}", kind(value)));
        };
        for (key, value) in entries {
            let len = self.path.len();
            self.path.push('.');
            self.path.push_str(key);
            match map.field(key).map(|field| field.ty).or(map.element) {
                Some(ty) => self.visit(ty, value),
                None => self.error("field not declared in schema".to_owned()),
            }
            self.path.truncate(len);
        }
    }

    fn visit_list(&mut self, list: &List, value: &Value) {
        let Value::Array(items) = value else {
            return self.error(format!("expected list, got {}", kind(value)));
        };
        let identities = if list.kind == ListKind::Atomic {
            None
        } else {
            match Groups::new(self.schema, list, items) {
                Ok(groups) => Some(groups),
                Err((at, error)) => return self.error(format!("element {at}: {error}")),
            }
        };
        if let (Duplicates::Reject, Some(groups)) = (self.duplicates, &identities) {
            for group in groups.iter().filter(|group| group.len() > 1) {
                self.error(format!("duplicate entries for key {}", group[0].0));
            }
        }
        let by_position = identities.as_ref().map(Groups::by_position);
        for (at, item) in items.iter().enumerate() {
            let len = self.path.len();
            let _ = match &by_position {
                Some(elements) => write!(self.path, "{}", elements[at]),
                None => write!(self.path, "[{at}]"),
            };
            self.visit(list.element, item);
            self.path.truncate(len);
        }
    }

    fn error(&mut self, message: String) {
        self.errors.push((self.path.clone(), message));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

fn render(errors: &[(String, String)]) -> String {
    let one = |(path, message): &(String, String)| {
        if path.is_empty() { message.clone() } else { format!("{path}: {message}") }
    };
    match errors {
        [error] => one(error),
        errors => errors.iter().fold("errors:".to_owned(), |text, error| text + "\n  " + &one(error)),
    }
}
