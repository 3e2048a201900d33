//! Types that are used by more than one kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The host and port of an API server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct APIEndpoint {
    /// The host name or IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 512))]
    pub host: Option<String>,
    /// The port number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub port: Option<i32>,
}

/// A condition in the format of v1beta1, which has a severity.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct V1Beta1Condition {
    /// The time at which the status last changed.
    pub last_transition_time: Time,
    /// A human-readable explanation of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 10240))]
    pub message: Option<String>,
    /// The reason for the status, as one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub reason: Option<String>,
    /// The severity of the status False: Error, Warning or Info.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 32))]
    pub severity: Option<String>,
    /// The status of the condition: True, False or Unknown.
    pub status: String,
    /// The type of the condition.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub type_: String,
}

/// A reference to an object of a provider in the same namespace. The API version is determined by the
/// contract labels of the object's CRD.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContractVersionedObjectReference {
    /// The API group of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub api_group: String,
    /// The kind of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    /// The name of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
}
