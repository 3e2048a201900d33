//! `management.cattle.io/v3` Setting: a setting of the management plane.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The fields of a Setting. They are at the root of the object.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "Setting",
    plural = "settings",
    no_spec,
    doc = "A setting of the management plane. The name of the object is the name of the setting.",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Value", "type": "string", "jsonPath": ".value"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SettingSpec {
    /// The value of the setting. If empty, the default is used.
    #[serde(default, deserialize_with = "crate::null::as_default")]
    pub value: String,
    /// The default value of the setting.
    #[serde(default, deserialize_with = "crate::null::as_default")]
    pub default: String,
    /// Whether `value` was set by a user.
    #[serde(default, deserialize_with = "crate::null::as_default")]
    pub customized: bool,
    /// The source of the value: `db`, `default` or `env`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub source: String,
}

impl SettingSpec {
    /// The effective value: `value`, or `default` if it is empty.
    pub fn effective(&self) -> &str {
        if self.value.is_empty() { &self.default } else { &self.value }
    }
}
