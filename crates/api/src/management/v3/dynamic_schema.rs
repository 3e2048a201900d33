//! DynamicSchema: the fields that a driver knows.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The schema.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "DynamicSchema",
    plural = "dynamicschemas",
    doc = "The fields of one type that is known only at run time.",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct DynamicSchemaSpec {
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub collection_actions: BTreeMap<String, Action>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub collection_fields: BTreeMap<String, Field>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub collection_filters: BTreeMap<String, Filter>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub collection_methods: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub dynamic_schema_version: String,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub embed: bool,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub embed_type: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub includeable_links: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub plural_name: String,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub resource_actions: BTreeMap<String, Action>,
    /// The fields.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub resource_fields: BTreeMap<String, Field>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub resource_methods: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub schema_name: String,
}

/// A filter of a collection.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub modifiers: Vec<String>,
}

/// One field of a type.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Field {
    /// May be set on creation.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub create: bool,
    /// Default value.
    #[serde(rename = "default", default, skip_serializing_if = "Option::is_none")]
    pub default_: Option<Values>,
    /// Text shown to people.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub description: String,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub dynamic_field: bool,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub invalid_chars: String,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub max: i64,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub max_length: i64,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub min: i64,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub min_length: i64,
    /// May be null.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub nullable: bool,
    /// Allowed values.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub options: Vec<String>,
    /// Must be set.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub required: bool,
    /// Type.
    #[serde(
        rename = "type",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub type_: String,
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub unique: bool,
    /// May be changed.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub update: bool,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub valid_chars: String,
}

/// A default value, by type.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Values {
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub bool_value: bool,
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub int_value: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub string_slice_value: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub string_value: String,
}

/// An action on a type.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Action {
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub input: String,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub output: String,
}
