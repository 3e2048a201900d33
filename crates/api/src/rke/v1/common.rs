//! Types that are used by more than one kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An address of a host.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineAddress {
    /// The host name or IP address.
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub address: String,
    /// The type of the address: Hostname, ExternalIP, InternalIP, ExternalDNS or InternalDNS.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = serde_json::json!(["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"])))]
    pub type_: String,
}

/// The host and port of an API server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct APIEndpoint {
    /// The host name or IP address.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minLength" = 1, "maxLength" = 512))]
    pub host: String,
    /// The port number.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub port: i32,
}

/// A condition in the format of Rancher. The status Unknown means that the operation is in progress.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenericCondition {
    /// The time at which the status last changed (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub last_transition_time: String,
    /// The time at which the condition was last written (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub last_update_time: String,
    /// A human-readable explanation of the status.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub message: String,
    /// The reason for the status, as one CamelCase word.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub reason: String,
    /// The status of the condition: True, False or Unknown.
    pub status: String,
    /// The type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
}

/// The authorized cluster endpoint: direct access to the API server of the cluster, not through the
/// management server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalClusterAuthEndpoint {
    /// The CA certificates of the endpoint, in PEM format.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub ca_certs: String,
    /// Whether the endpoint is enabled.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub enabled: bool,
    /// The fully qualified domain name of the endpoint.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub fqdn: String,
}

/// An environment variable.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// The name of the variable.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    /// The value of the variable.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub value: String,
}
