//! `management.cattle.io/v3` ClusterRegistrationToken: a token with which machines and agents register.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the ClusterRegistrationToken.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "ClusterRegistrationToken",
    plural = "clusterregistrationtokens",
    namespaced,
    doc = "A token with which machines and agents register. Its namespace is the cluster ID.",
    status = "ClusterRegistrationTokenStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Expires", "type": "string", "jsonPath": ".status.expiresAt"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRegistrationTokenSpec {
    /// The name of the management Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// The lifetime of the token, in minutes. If unset or not positive, the token does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<i64>,
    /// The number of minutes for which the previous token is still accepted after a rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<i64>,
}

/// The observed state of the ClusterRegistrationToken. The commands contain the placeholder `{token}` for the
/// value of the token.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRegistrationTokenStatus {
    /// The command that imports a cluster without verification of the server's certificate.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub insecure_command: String,
    /// The command that imports a cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub command: String,
    /// The command that registers a Windows machine.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub windows_node_command: String,
    /// The command that registers a Windows machine without verification of the server's certificate.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub insecure_windows_node_command: String,
    /// The command that registers a Linux machine.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub node_command: String,
    /// The command that registers a Linux machine without verification of the server's certificate.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub insecure_node_command: String,
    /// The URL of the manifest that imports a cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub manifest_url: String,
    /// The value of the token in old releases. It is empty if the token is in a Secret.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub token: String,
    /// The name of the Secret that contains the token.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub token_secret_name: String,
    /// The time at which the token expires (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub expires_at: String,
    /// The time until which the previous token is accepted (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub grace_period_expires_at: String,
}
