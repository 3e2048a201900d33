//! RKEBootstrap: the bootstrap provider's object for one machine, and its template.

use std::collections::BTreeMap;

use crate::wait::Wait;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired state of the RKEBootstrapTemplate.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEBootstrapTemplate",
    plural = "rkebootstraptemplates",
    namespaced,
    doc = "A template from which RKEBootstraps are created.",
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
    /// The name of the Cluster that the template belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// The template from which RKEBootstraps are created.
    pub template: RKEBootstrapTemplateResource,
}

/// The desired state of the RKEBootstrap.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "rke.cattle.io",
    version = "v1",
    kind = "RKEBootstrap",
    plural = "rkebootstraps",
    namespaced,
    doc = "The bootstrap configuration of one machine. The bootstrap provider creates the machine's plan secret and install script from it.",
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
    /// The name of the Cluster that the machine belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cluster_name: String,
    /// User data for the machine. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub userdata: Option<UserdataSpec>,
}

/// The observed state of the RKEBootstrap.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapStatus {
    /// The name of the Secret that contains the bootstrap data under the key `value`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub data_secret_name: String,
    /// Initialization steps that are complete. A step that is true remains true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<RKEBootstrapInitializationStatus>,
    /// True after the bootstrap data has been created.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ready: bool,
    /// What the bootstrap provider is waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits: Vec<Wait>,
}

/// The template from which RKEBootstraps are created.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapTemplateResource {
    /// The API version of the object.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub api_version: String,
    /// The kind of the object.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub kind: String,
    /// The metadata of RKEBootstraps that are created from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<RKEBootstrapTemplateResourceMetadata>,
    /// The desired state of RKEBootstraps that are created from the template.
    pub spec: RKEBootstrapSpec,
    /// Not used: the status of RKEBootstraps is not created from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RKEBootstrapStatus>,
}

/// The metadata of RKEBootstraps that are created from the template.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEBootstrapTemplateResourceMetadata {
    /// The annotations.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub annotations: BTreeMap<String, String>,
    /// The finalizers.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub finalizers: Vec<String>,
    /// The labels.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub labels: BTreeMap<String, String>,
    /// The name.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub name: String,
    /// The namespace.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub namespace: String,
}

/// Initialization steps that are complete. A step that is true remains true.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RKEBootstrapInitializationStatus {
    /// True after the Secret with the bootstrap data has been created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_created: Option<bool>,
}

/// User data for a machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserdataSpec {
    /// The content of the user data.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub inline_userdata: String,
}
