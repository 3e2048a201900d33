//! Types that several kinds share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An address of a machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineAddress {
    /// The address.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub address: String,
    /// Type.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = serde_json::json!(["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"])))]
    pub type_: String,
}

/// Where an API server answers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct APIEndpoint {
    /// Host name or address.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minLength" = 1, "maxLength" = 512))]
    pub host: String,
    /// Port.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub port: i32,
}

/// A condition of Rancher's objects; Unknown means in progress.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenericCondition {
    /// When the status changed last.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub last_transition_time: String,
    /// When the condition was last written.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub last_update_time: String,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub message: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub reason: String,
    /// True, False or Unknown.
    pub status: String,
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
}

/// Direct access to the cluster's own API endpoint.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalClusterAuthEndpoint {
    /// CA certificates of the endpoint.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub ca_certs: String,
    /// Switches it on.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub enabled: bool,
    /// Name of the endpoint.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub fqdn: String,
}

/// An environment variable.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    /// Value.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub value: String,
}
