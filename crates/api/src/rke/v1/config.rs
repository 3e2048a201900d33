//! The distribution's configuration, shared by the provisioning Cluster and the control plane.

use std::collections::BTreeMap;

use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Configuration of the distribution and of its upgrades.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// How many machines change at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<ClusterUpgradeStrategy>,
    /// Values of the distribution's charts, by chart.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub chart_values: BTreeMap<String, Value>,
    /// Configuration of every machine, as in the distribution's config.yaml.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub machine_global_config: BTreeMap<String, Value>,
    /// Configuration of the machines that a selector matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub machine_selector_config: Vec<RKESystemConfig>,
    /// Files of the machines that a selector matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub machine_selector_files: Vec<RKEProvisioningFiles>,
    /// Manifest applied by the distribution.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub additional_manifest: String,
    /// Container registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registries: Option<Registry>,
    /// Etcd snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<ETCD>,
    /// Network stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networking: Option<Networking>,
    /// Where things are kept on a machine; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_directories: Option<DataDirectories>,
    /// Increase to run every machine's plan again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub provision_generation: i64,
}

/// Where things are kept on a machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDirectories {
    /// Directory of the distribution.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub k8s_distro: String,
    /// Directory of provisioning.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub provisioning: String,
    /// Directory of the node agent.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub system_agent: String,
}

/// Network stack.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// dual, ipv4 or ipv6.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub stack_preference: String,
}

/// Etcd snapshots.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCD {
    /// Takes no snapshots.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub disable_snapshots: bool,
    /// S3 bucket for snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<ETCDSnapshotS3>,
    /// Number of snapshots kept.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub snapshot_retention: i64,
    /// When snapshots are taken.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub snapshot_schedule_cron: String,
}

/// S3 bucket for etcd snapshots.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotS3 {
    /// Bucket.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 63))]
    pub bucket: String,
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cloud_credential_name: String,
    /// Endpoint.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub endpoint: String,
    /// CA of the endpoint.
    #[serde(
        rename = "endpointCA",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub endpoint_ca: String,
    /// Folder in the bucket.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub folder: String,
    /// Region.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub region: String,
    /// Number of snapshots kept in the bucket.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 0))]
    pub retention: i64,
    /// Does not verify the endpoint's certificate.
    #[serde(
        rename = "skipSSLVerify",
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub skip_ssl_verify: bool,
}

/// Container registries.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Registry {
    /// Credentials and TLS, by registry.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub configs: BTreeMap<String, RegistryConfig>,
    /// Endpoints that stand in for registries.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub mirrors: BTreeMap<String, Mirror>,
}

/// Endpoints that stand in for a registry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub endpoint: Vec<String>,
    /// Rewrites of image names: pattern to replacement.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub rewrite: BTreeMap<String, String>,
}

/// Credentials and TLS of a registry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryConfig {
    /// Secret with the credentials.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 253))]
    pub auth_config_secret_name: String,
    /// CA certificates.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("format" = "byte"))]
    pub ca_bundle: String,
    /// Does not verify the registry's certificate.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub insecure_skip_verify: bool,
    /// Secret with the client certificate.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 253))]
    pub tls_secret_name: String,
}

/// Files for the machines that a selector matches.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEProvisioningFiles {
    /// Where the files come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub file_sources: Vec<ProvisioningFileSource>,
    /// Which machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub machine_label_selector: Option<LabelSelector>,
}

/// A Secret or ConfigMap that files come from.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningFileSource {
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<K8sObjectFileSource>,
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<K8sObjectFileSource>,
}

/// The keys of an object that become files.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct K8sObjectFileSource {
    /// Permissions of files that name none.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_permissions: String,
    /// The keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub items: Vec<KeyToPath>,
    /// Name.
    #[schemars(extend("maxLength" = 253))]
    pub name: String,
}

/// One key that becomes one file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyToPath {
    /// A change of the file alone does not restart anything.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub dynamic: bool,
    /// Expected SHA-256 of the content.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub hash: String,
    /// Key.
    pub key: String,
    /// Path on the machine.
    pub path: String,
    /// Permissions of the file.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub permissions: String,
}

/// Configuration for the machines that a selector matches.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKESystemConfig {
    /// The configuration.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub config: BTreeMap<String, Value>,
    /// Which machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub machine_label_selector: Option<LabelSelector>,
}

/// How many machines change at once, and whether they are drained.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradeStrategy {
    /// Control-plane machines changed at once: a number or a percentage; 0 means all.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub control_plane_concurrency: String,
    /// How control-plane nodes are drained before a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_drain_options: Option<DrainOptions>,
    /// Workers changed at once: a number or a percentage; 0 means all.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub worker_concurrency: String,
    /// How workers are drained before a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_drain_options: Option<DrainOptions>,
}

/// How a node is drained.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainOptions {
    /// Removes pods with local data, too.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub delete_empty_dir_data: bool,
    /// Deletes pods instead of evicting them.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub disable_eviction: bool,
    /// Switches it on.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub enabled: bool,
    /// Removes pods that nothing manages, too.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub force: bool,
    /// Seconds a pod gets to end; negative means its own.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub grace_period: i64,
    /// Leaves pods of DaemonSets; true unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_daemon_sets: Option<bool>,
    /// Unused.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ignore_errors: bool,
    /// Waits for these after a drain.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub post_drain_hooks: Vec<DrainHook>,
    /// Waits for these before a drain.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub pre_drain_hooks: Vec<DrainHook>,
    /// Does not wait for pods that have been ending for longer.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub skip_wait_for_delete_timeout_seconds: i64,
    /// Seconds a drain may take; 0 means as long as it needs.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub timeout: i64,
}

/// An annotation that someone must set before work goes on.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainHook {
    /// Annotation on the machine's plan secret.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 317))]
    pub annotation: String,
}
