//! `management.cattle.io/v3` ClusterRegistrationToken: what a node or cluster registers with.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose token this is and how long it lives.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "management.cattle.io",
    version = "v3",
    kind = "ClusterRegistrationToken",
    plural = "clusterregistrationtokens",
    namespaced,
    doc = "A token with which machines and agents register; its namespace is the cluster id.",
    status = "ClusterRegistrationTokenStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Expires", "type": "string", "jsonPath": ".status.expiresAt"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRegistrationTokenSpec {
    /// Name of the management Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// Lifetime in minutes; zero or less means forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<i64>,
    /// Minutes during which the previous token is still accepted after a rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<i64>,
}

/// The token's place and the commands that use it, with `{token}` where the token belongs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRegistrationTokenStatus {
    /// Command that imports a cluster, without verifying the server.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub insecure_command: String,
    /// Command that imports a cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub command: String,
    /// Command that registers a Windows machine.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub windows_node_command: String,
    /// Command that registers a Windows machine, without verifying the server.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub insecure_windows_node_command: String,
    /// Command that registers a Linux machine.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub node_command: String,
    /// Command that registers a Linux machine, without verifying the server.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub insecure_node_command: String,
    /// Address of the import manifest.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub manifest_url: String,
    /// The token itself in old releases; empty once it lives in a Secret.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub token: String,
    /// Name of the Secret that holds the token.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub token_secret_name: String,
    /// When the token is rotated (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub expires_at: String,
    /// When the previous token stops being accepted (RFC 3339).
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub grace_period_expires_at: String,
}
