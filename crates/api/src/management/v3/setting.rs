//! `management.cattle.io/v3` Setting: one named value of the management plane.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The fields of a Setting, which stand at the root of the object.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "Setting",
    plural = "settings",
    no_spec,
    doc = "One named value of the management plane.",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Value", "type": "string", "jsonPath": ".value"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SettingSpec {
    /// The value in force when it is not empty.
    #[serde(default, deserialize_with = "crate::null::as_default")]
    pub value: String,
    /// The value in force otherwise.
    #[serde(default, deserialize_with = "crate::null::as_default")]
    pub default: String,
    /// True when somebody set `value`.
    #[serde(default, deserialize_with = "crate::null::as_default")]
    pub customized: bool,
    /// Where the value comes from: `db`, `default` or `env`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub source: String,
}

impl SettingSpec {
    /// The value in force.
    pub fn effective(&self) -> &str {
        if self.value.is_empty() { &self.default } else { &self.value }
    }
}
