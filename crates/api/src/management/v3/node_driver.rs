//! NodeDriver: a machine driver and where its binary comes from.

use crate::rke::v1::GenericCondition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "NodeDriver",
    plural = "nodedrivers",
    doc = "A machine driver and where its binary comes from.",
    status = "NodeDriverStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Activated", "type": "string", "jsonPath": ".spec.active"}"#,
    printcolumn = r#"{"name": "Binary URL", "type": "string", "jsonPath": ".spec.url"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = serde_json::json!([{"message": "Checksum must be an md5, sha1, sha256, or sha512 digest.", "rule": "!has(self.checksum) || (self.checksum.size() in [0, 32, 40, 64, 128])"}])))]
pub struct NodeDriverSpec {
    /// Whether the driver may be used.
    pub active: bool,
    /// Whether the driver has a cloud credential.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub add_cloud_credential: bool,
    /// Whether the driver comes with the program.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub builtin: bool,
    /// Checksum of the binary.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 128, "pattern" = "^$|^[a-fA-F0-9]{32,128}$"))]
    pub checksum: String,
    /// Text shown to people.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub description: String,
    /// Name shown to people.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 57))]
    pub display_name: String,
    /// Id in a catalog (deprecated).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub external_id: String,
    /// Where its form comes from.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub ui_url: String,
    /// Where the binary comes from.
    pub url: String,
    /// Domains that the form may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub whitelist_domains: Vec<String>,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDriverStatus {
    /// Checksum of the installed binary.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub applied_checksum: String,
    /// Version of the tool that installed it.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub applied_docker_machine_version: String,
    /// URL of the installed binary.
    #[serde(
        rename = "appliedURL",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub applied_url: String,
    /// Conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
}
