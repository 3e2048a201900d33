//! RKEBootstrap: the bootstrap provider's object for one machine, and its template.

use std::collections::BTreeMap;

use crate::wait::Wait;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEBootstrapTemplate",
    plural = "rkebootstraptemplates",
    namespaced,
    doc = "Template of RKEBootstraps.",
    derive = "PartialEq",
    derive = "Default",
    category = "cluster-api",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1"),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapTemplateSpec {
    /// Name of the Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// What each is made from.
    pub template: RKEBootstrapTemplateResource,
}

/// What is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEBootstrap",
    plural = "rkebootstraps",
    namespaced,
    doc = "Bootstrap of one machine: its plan secret and its install script.",
    status = "RKEBootstrapStatus",
    derive = "PartialEq",
    derive = "Default",
    category = "cluster-api",
    label("auth.cattle.io/cluster-indexed", "true"),
    label("cluster.x-k8s.io/v1beta1", "v1"),
    label("cluster.x-k8s.io/v1beta2", "v1"),
    printcolumn = r#"{"name": "Cluster", "type": "string", "jsonPath": ".spec.clusterName"}"#,
    printcolumn = r#"{"name": "Machine", "type": "string", "jsonPath": ".metadata.ownerReferences[?(@.kind==\"Machine\")].name"}"#,
    printcolumn = r#"{"name": "Ready", "type": "boolean", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Data Secret", "type": "string", "jsonPath": ".status.dataSecretName"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapSpec {
    /// Name of the Cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// User data for external infrastructure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub userdata: Option<UserdataSpec>,
}

/// What has been observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapStatus {
    /// Secret that holds the bootstrap data under the key `value`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub data_secret_name: String,
    /// Steps that happen once; each stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEBootstrapInitializationStatus>,
    /// True once the cluster has been ready.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    /// What is waited for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<Wait>,
}

/// What each RKEBootstrap is made from.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapTemplateResource {
    /// API version of the object.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub api_version: String,
    /// Kind of the object.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kind: String,
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<RKEBootstrapTemplateResourceMetadata>,
    /// What is asked for.
    pub spec: RKEBootstrapSpec,
    /// True, False or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RKEBootstrapStatus>,
}

/// Labels and annotations of what is made from the template.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapTemplateResourceMetadata {
    /// Annotations.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub finalizers: Vec<String>,
    /// Labels.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub labels: BTreeMap<String, String>,
    /// Name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub namespace: String,
}

/// Steps that happen once; each stays true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RKEBootstrapInitializationStatus {
    /// True once the bootstrap data exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_created: Option<bool>,
}

/// User data for external infrastructure.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserdataSpec {
    /// The user data.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub inline_userdata: String,
}
