//! NodeDriver: a machine driver and the source of its binary.

use crate::rke::v1::GenericCondition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the NodeDriver.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "NodeDriver",
    plural = "nodedrivers",
    doc = "A machine driver, which creates and deletes machines at an infrastructure provider.",
    status = "NodeDriverStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Activated", "type": "string", "jsonPath": ".spec.active"}"#,
    printcolumn = r#"{"name": "Binary URL", "type": "string", "jsonPath": ".spec.url"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = serde_json::json!([{"message": "Checksum must be an md5, sha1, sha256, or sha512 digest.", "rule": "!has(self.checksum) || (self.checksum.size() in [0, 32, 40, 64, 128])"}])))]
pub struct NodeDriverSpec {
    /// Whether the driver can be used.
    pub active: bool,
    /// Whether the driver uses cloud credentials.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub add_cloud_credential: bool,
    /// Whether the driver is built in.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub builtin: bool,
    /// The checksum of the driver's binary.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 128, "pattern" = "^$|^[a-fA-F0-9]{32,128}$"))]
    pub checksum: String,
    /// The description that is shown in user interfaces.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub description: String,
    /// The name of the driver, which is also shown in user interfaces. Defaults to the name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 57))]
    pub display_name: String,
    /// The ID of the driver in a catalog (deprecated).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub external_id: String,
    /// The URL of the driver's user interface component.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub ui_url: String,
    /// The URL of the driver's binary. Downloading drivers is not implemented yet.
    pub url: String,
    /// The domains that the driver's user interface component can call.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub whitelist_domains: Vec<String>,
}

/// The observed state of the NodeDriver.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDriverStatus {
    /// The checksum of the installed binary.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub applied_checksum: String,
    /// The version of the tool that installed the binary.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub applied_docker_machine_version: String,
    /// The URL of the installed binary.
    #[serde(
        rename = "appliedURL",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub applied_url: String,
    /// The conditions of the NodeDriver, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = serde_json::json!(["type"])))]
    pub conditions: Vec<GenericCondition>,
}
