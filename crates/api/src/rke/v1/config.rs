//! The configuration of the distribution. The provisioning Cluster and the RKEControlPlane share it.

use std::collections::BTreeMap;

use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The configuration of the distribution and of its upgrades.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// How many machines are updated at the same time, and whether they are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<ClusterUpgradeStrategy>,
    /// Values for the Helm charts of the distribution, by chart name. Not implemented yet: setting it is
    /// reported as having no effect.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub chart_values: BTreeMap<String, Value>,
    /// Configuration for all machines, as in config.yaml of the distribution.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub machine_global_config: BTreeMap<String, Value>,
    /// Configuration for machines that match a label selector. A later entry overrides an earlier one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub machine_selector_config: Vec<RKESystemConfig>,
    /// Files for machines that match a label selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub machine_selector_files: Vec<RKEProvisioningFiles>,
    /// Kubernetes manifests, as YAML, that the distribution applies to the cluster.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub additional_manifest: String,
    /// The configuration of container registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registries: Option<Registry>,
    /// The configuration of etcd snapshots. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<ETCD>,
    /// The network stack of the cluster. Not implemented yet: the value is stored but has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networking: Option<Networking>,
    /// Data directories on the machines. They cannot be changed after the cluster was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_directories: Option<DataDirectories>,
    /// Increase this number to run the plans of all machines again.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub provision_generation: i64,
}

/// Data directories on the machines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDirectories {
    /// The data directory of the distribution. Defaults to `/var/lib/rancher/k3s` or `/var/lib/rancher/rke2`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub k8s_distro: String,
    /// The directory in which provisioning keeps its files. Defaults to `/var/lib/rancher/capr`.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub provisioning: String,
    /// The data directory of the node agent.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub system_agent: String,
}

/// The network stack of a cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// The preferred IP stack: dual, ipv4 or ipv6.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub stack_preference: String,
}

/// The configuration of etcd snapshots.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCD {
    /// Whether scheduled snapshots are disabled.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub disable_snapshots: bool,
    /// The S3 bucket in which snapshots are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<ETCDSnapshotS3>,
    /// The number of snapshots to keep.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub snapshot_retention: i64,
    /// The schedule of the snapshots, in cron format.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub snapshot_schedule_cron: String,
}

/// An S3 bucket for etcd snapshots.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ETCDSnapshotS3 {
    /// The name of the bucket.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 63))]
    pub bucket: String,
    /// The name of the Secret with the cloud credential for the bucket.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub cloud_credential_name: String,
    /// The host name of the S3 endpoint.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub endpoint: String,
    /// The CA certificate of the endpoint.
    #[serde(
        rename = "endpointCA",
        default,
        skip_serializing_if = "String::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub endpoint_ca: String,
    /// The folder in the bucket.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub folder: String,
    /// The region of the bucket.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub region: String,
    /// The number of snapshots to keep in the bucket.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(extend("minimum" = 0))]
    pub retention: i64,
    /// Whether verification of the endpoint's certificate is disabled.
    #[serde(
        rename = "skipSSLVerify",
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub skip_ssl_verify: bool,
}

/// The configuration of container registries.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Registry {
    /// Credentials and TLS settings, by host name of the registry.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub configs: BTreeMap<String, RegistryConfig>,
    /// Mirrors, by host name of the registry.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub mirrors: BTreeMap<String, Mirror>,
}

/// The mirrors of a registry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// The URLs of the mirrors.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub endpoint: Vec<String>,
    /// Rewrite rules for image names: a map from regular expression to replacement.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    pub rewrite: BTreeMap<String, String>,
}

/// Credentials and TLS settings of a registry.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryConfig {
    /// The name of the Secret with the credentials. Not implemented yet: the value is stored but has no
    /// effect.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 253))]
    pub auth_config_secret_name: String,
    /// CA certificates for the verification of the registry's certificate. Not implemented yet: the value is
    /// stored but has no effect.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("format" = "byte"))]
    pub ca_bundle: String,
    /// Whether verification of the registry's certificate is disabled.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub insecure_skip_verify: bool,
    /// The name of the Secret with the client certificate. Not implemented yet: the value is stored but has
    /// no effect.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 253))]
    pub tls_secret_name: String,
}

/// Files for machines that match a label selector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKEProvisioningFiles {
    /// The Secrets and ConfigMaps that contain the files.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub file_sources: Vec<ProvisioningFileSource>,
    /// The label selector for the machines. If unset, all machines match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub machine_label_selector: Option<LabelSelector>,
}

/// A Secret or ConfigMap that contains files.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningFileSource {
    /// The ConfigMap that contains files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<K8sObjectFileSource>,
    /// The Secret that contains files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<K8sObjectFileSource>,
}

/// An object in the namespace of the cluster, and its keys that are written to files. The annotation
/// `rke.cattle.io/object-authorized-for-clusters` of the object must contain the name of the cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct K8sObjectFileSource {
    /// The permissions of files for which an item sets none.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub default_permissions: String,
    /// The keys that are written to files.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub items: Vec<KeyToPath>,
    /// The name of the object.
    #[schemars(extend("maxLength" = 253))]
    pub name: String,
}

/// A key that is written to a file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyToPath {
    /// Whether the file can change without a restart of the distribution.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub dynamic: bool,
    /// The expected SHA-256 hash of the content, base64-encoded. If set, other content is rejected.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub hash: String,
    /// The key in the object.
    pub key: String,
    /// The absolute path of the file on the machine.
    pub path: String,
    /// The permissions of the file. Defaults to defaultPermissions.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    pub permissions: String,
}

/// Configuration for machines that match a label selector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RKESystemConfig {
    /// The configuration, as in config.yaml of the distribution.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::null::as_default"
    )]
    #[schemars(schema_with = "schema::any_object")]
    pub config: BTreeMap<String, Value>,
    /// The label selector for the machines. If unset, all machines match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub machine_label_selector: Option<LabelSelector>,
}

/// How many machines are updated at the same time, and whether they are drained.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradeStrategy {
    /// The number of control plane machines that are updated at the same time: an absolute number, or a
    /// percentage, rounded up. Defaults to 1; 0 means no limit.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub control_plane_concurrency: String,
    /// How control plane nodes are drained before they are updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_drain_options: Option<DrainOptions>,
    /// The number of workers that are updated at the same time: an absolute number, or a percentage, rounded
    /// up. Defaults to 1; 0 means no limit.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 10, "pattern" = "^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$"))]
    pub worker_concurrency: String,
    /// How worker nodes are drained before they are updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_drain_options: Option<DrainOptions>,
}

/// How a node is drained.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainOptions {
    /// Whether pods with emptyDir volumes are removed, too. Their data is lost. If false, such pods make the
    /// drain fail.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub delete_empty_dir_data: bool,
    /// Whether pods are deleted instead of evicted. Deletion ignores PodDisruptionBudgets.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub disable_eviction: bool,
    /// Whether nodes are drained.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub enabled: bool,
    /// Whether pods that no controller manages are removed, too. If false, such pods make the drain fail.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub force: bool,
    /// The grace period of pods, in seconds. A negative value means the grace period of the
    /// pod; 0, the default, means that pods are terminated immediately.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub grace_period: i64,
    /// Whether pods of DaemonSets are ignored. Defaults to true. If false, such pods make the drain fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_daemon_sets: Option<bool>,
    /// Not implemented yet: the value is stored but has no effect.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "crate::null::as_default"
    )]
    pub ignore_errors: bool,
    /// Hooks that must be acknowledged after a drain.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub post_drain_hooks: Vec<DrainHook>,
    /// Hooks that must be acknowledged before a drain.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::as_default")]
    pub pre_drain_hooks: Vec<DrainHook>,
    /// The number of seconds after which the drain no longer waits for a pod that is being deleted. 0 means
    /// that it waits for all pods.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub skip_wait_for_delete_timeout_seconds: i64,
    /// The number of seconds after which a drain fails. 0 means the default of 600.
    #[serde(
        default,
        skip_serializing_if = "crate::null::is_zero",
        deserialize_with = "crate::null::as_default"
    )]
    pub timeout: i64,
}

/// A hook that must be acknowledged before a drain continues.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainHook {
    /// The annotation on the machine's plan secret that acknowledges the hook.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "crate::null::as_default")]
    #[schemars(extend("maxLength" = 317))]
    pub annotation: String,
}
