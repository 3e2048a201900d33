//! The structural schema: the part of OpenAPI v3 that Kubernetes accepts in a CRD, parsed once into a tree.
//!
//! A node has a *structure* (type, properties, items, extensions) and *value validations*. Value validations can nest
//! through allOf, anyOf, oneOf and not, but must not add structure there. [`parse`] reads the JSON form, [`check`]
//! checks that the schema is structural.

pub mod check;
pub mod parse;
mod patterns;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

use crate::validate::formats::Format;

/// JSON types; `null` is expressed by `nullable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// JSON object
    Object,
    /// JSON array
    Array,
    /// JSON string
    String,
    /// A number without fraction
    Integer,
    /// Any number
    Number,
    /// true or false
    Boolean,
}

impl Type {
    /// The spelling in schemas and in errors.
    pub fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }
}

/// `x-kubernetes-list-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole
    Atomic,
    /// Unique scalars
    Set,
    /// Objects, unique by `x-kubernetes-list-map-keys`
    Map,
}

/// `x-kubernetes-map-type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapType {
    /// Replaced as a whole
    Atomic,
    /// Merged by key
    Granular,
}

/// `additionalProperties`
#[derive(Clone, Debug, Default)]
pub enum Additional {
    /// Absent
    #[default]
    Unset,
    /// `true` or `false`
    Allowed(bool),
    /// All values follow a schema
    Schema(Box<Structural>),
}

impl Additional {
    /// The schema of the values, if there is one.
    pub fn schema(&self) -> Option<&Structural> {
        match self {
            Additional::Schema(s) => Some(s),
            _ => None,
        }
    }

    /// True if unknown keys are allowed.
    pub fn accepts(&self) -> bool {
        !matches!(self, Additional::Unset | Additional::Allowed(false))
    }
}

/// One node of the schema.
#[derive(Clone, Debug, Default)]
pub struct Structural {
    /// `type`; absent only for int-or-string and preserve-unknown nodes
    pub kind: Option<Type>,
    /// `nullable`
    pub nullable: bool,
    /// `default`
    pub default: Option<Value>,
    /// `properties`
    pub properties: BTreeMap<String, Structural>,
    /// `additionalProperties`
    pub additional: Additional,
    /// `items`
    pub items: Option<Box<Structural>>,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve_unknown_fields: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded_resource: bool,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// `x-kubernetes-list-type`
    pub list_type: Option<ListType>,
    /// `x-kubernetes-list-map-keys`
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type`
    pub map_type: Option<MapType>,
    /// `x-kubernetes-validations`
    pub rules: Vec<Rule>,
    /// Restrictions of the value; absent if there are none
    pub value: Option<Box<ValueValidation>>,
}

impl Structural {
    /// The schema of property `name`, declared or additional.
    pub fn property(&self, name: &str) -> Option<&Structural> {
        self.properties.get(name).or_else(|| self.additional.schema())
    }

    /// True if this node or one below it has a default, so that defaulting must visit it.
    pub fn has_defaults(&self) -> bool {
        self.default.is_some()
            || self.properties.values().any(Structural::has_defaults)
            || self.additional.schema().is_some_and(Structural::has_defaults)
            || self.items.as_deref().is_some_and(Structural::has_defaults)
    }
}

/// One entry of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// CEL expression that must be true
    pub rule: String,
    /// Error message
    pub message: String,
    /// CEL expression for the message
    pub message_expression: String,
    /// `FieldValueInvalid` (default), `FieldValueForbidden`, `FieldValueRequired`, `FieldValueDuplicate`
    pub reason: Option<String>,
    /// Path of the field of the error, relative to the node
    pub field_path: String,
    /// Whether `oldSelf` is optional, so that the rule also runs on create
    pub optional_old_self: Option<bool>,
}

/// Restrictions of a value, in the structure or below allOf/anyOf/oneOf/not.
#[derive(Clone, Debug, Default)]
pub struct ValueValidation {
    /// `format`, if the server checks it
    pub format: Option<Format>,
    /// `maximum` and whether it is exclusive
    pub maximum: Option<(Number, bool)>,
    /// `minimum` and whether it is exclusive
    pub minimum: Option<(Number, bool)>,
    /// `maxLength` in characters
    pub max_length: Option<u64>,
    /// `minLength` in characters
    pub min_length: Option<u64>,
    /// `pattern`
    pub pattern: Option<Pattern>,
    /// `maxItems`
    pub max_items: Option<u64>,
    /// `minItems`
    pub min_items: Option<u64>,
    /// `multipleOf`
    pub multiple_of: Option<Number>,
    /// `enum`
    pub enumeration: Vec<Value>,
    /// `maxProperties`
    pub max_properties: Option<u64>,
    /// `minProperties`
    pub min_properties: Option<u64>,
    /// `required`
    pub required: Vec<String>,
    /// `allOf`
    pub all_of: Vec<Nested>,
    /// `anyOf`
    pub any_of: Vec<Nested>,
    /// `oneOf`
    pub one_of: Vec<Nested>,
    /// `not`
    pub not: Option<Box<Nested>>,
}

impl ValueValidation {
    fn is_empty(&self) -> bool {
        self.format.is_none()
            && self.maximum.is_none()
            && self.minimum.is_none()
            && self.max_length.is_none()
            && self.min_length.is_none()
            && self.pattern.is_none()
            && self.max_items.is_none()
            && self.min_items.is_none()
            && self.multiple_of.is_none()
            && self.enumeration.is_empty()
            && self.max_properties.is_none()
            && self.min_properties.is_none()
            && self.required.is_empty()
            && self.all_of.is_empty()
            && self.any_of.is_empty()
            && self.one_of.is_empty()
            && self.not.is_none()
    }
}

/// A value validation below allOf/anyOf/oneOf/not.
#[derive(Clone, Debug, Default)]
pub struct Nested {
    /// Restrictions of the value itself
    pub value: ValueValidation,
    /// Restrictions of list items
    pub items: Option<Box<Nested>>,
    /// Restrictions of properties
    pub properties: BTreeMap<String, Nested>,
    /// Only allowed in the two branches of the int-or-string pattern
    pub kind: Option<Type>,
    /// Structural keywords found here, each with its error
    pub forbidden: Vec<(&'static str, &'static str)>,
}

/// A compiled regular expression with its source.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// As written
    pub source: String,
    /// Compiled
    pub regex: Regex,
}
