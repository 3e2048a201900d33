//! Types that several kinds share.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an API server answers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct APIEndpoint {
    /// Host name or address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 512))]
    pub host: Option<String>,
    /// Port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 65535))]
    pub port: Option<i32>,
}

/// A condition of the older family, with a severity.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct V1Beta1Condition {
    /// When the status changed last.
    pub last_transition_time: Time,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 10240))]
    pub message: Option<String>,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub reason: Option<String>,
    /// How bad a False is: Error, Warning or Info.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 32))]
    pub severity: Option<String>,
    /// True, False or Unknown.
    pub status: String,
    /// Type.
    #[serde(rename = "type")]
    #[schemars(extend("minLength" = 1, "maxLength" = 256))]
    pub type_: String,
}

/// A provider's object in the same namespace; its version follows from the contract labels of its CRD.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContractVersionedObjectReference {
    /// API group of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub api_group: String,
    /// Kind of the object.
    #[schemars(extend("minLength" = 1, "maxLength" = 63, "pattern" = "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub kind: String,
    /// Name.
    #[schemars(extend("minLength" = 1, "maxLength" = 253, "pattern" = r#"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"#))]
    pub name: String,
}
