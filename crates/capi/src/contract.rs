//! The Cluster API contract: how the version of a reference is resolved, and which fields of a provider's object are
//! read.
//!
//! A reference has group, kind and name; the version follows from labels of the CRD (`cluster.x-k8s.io/<contract>:
//! v1_v2`). An object of a v1beta2 provider is read only at the v1beta2 paths; its `status.ready` is ignored.

use drover_api::capi::v1beta2::{FailureDomain, MachineAddress};
use drover_api::labels::capi::CONTRACT_PREFIX;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

/// A version of the contract between core and providers.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Contract {
    /// Booleans at `status.ready`.
    V1Beta1,
    /// Booleans below `status.initialization`.
    V1Beta2,
}

/// Why a reference cannot be resolved.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResolveError {
    /// The provider is not installed.
    #[error("no CustomResourceDefinition serves {kind}.{group}; install its provider")]
    CrdMissing {
        /// Kind of the reference.
        kind: String,
        /// Group of the reference.
        group: String,
    },
    /// The CRD has no contract label.
    #[error(
        "CustomResourceDefinition {crd} has no label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 that names \
         a served version"
    )]
    NoContract {
        /// Name of the CRD.
        crd: String,
    },
    /// The objects of the kind are not listed yet.
    #[error("waiting for the list of all {plural}")]
    NotListed {
        /// The kind's name in paths, with its group.
        plural: String,
    },
}

/// The newest version of the newest contract in the CRD's labels.
pub fn resolve(crd: &CustomResourceDefinition) -> Result<(ApiResource, Contract), ResolveError> {
    let labels = crd.metadata.labels.clone().unwrap_or_default();
    let served = |version: &&str| crd.spec.versions.iter().any(|v| v.name == **version && v.served);
    for (contract, name) in [(Contract::V1Beta2, "v1beta2"), (Contract::V1Beta1, "v1beta1")] {
        let Some(versions) = labels.get(&format!("{CONTRACT_PREFIX}{name}")) else { continue };
        let newest = versions.split('_').filter(served).max_by_key(|version| version_priority(version));
        if let Some(version) = newest {
            return Ok((resource_of(crd, version), contract));
        }
    }
    Err(ResolveError::NoContract { crd: crd.metadata.name.clone().unwrap_or_default() })
}

/// The API resource of a version of a CRD.
pub(crate) fn resource_of(crd: &CustomResourceDefinition, version: &str) -> ApiResource {
    ApiResource {
        group: crd.spec.group.clone(),
        version: version.to_owned(),
        api_version: format!("{}/{version}", crd.spec.group),
        kind: crd.spec.names.kind.clone(),
        plural: crd.spec.names.plural.clone(),
    }
}

/// Kubernetes' order of versions: v2 > v1 > v1beta2 > v1beta1 > v1alpha1.
fn version_priority(version: &str) -> (u8, u32, u32) {
    let rest = version.strip_prefix('v').unwrap_or(version);
    let (major, stage, minor) = match (rest.split_once("beta"), rest.split_once("alpha")) {
        (Some((major, minor)), _) => (major, 1, minor),
        (_, Some((major, minor))) => (major, 0, minor),
        _ => (rest, 2, "0"),
    };
    (stage, major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
}

/// A provider's object with its contract.
#[derive(Clone, Copy, Debug)]
pub struct Provided<'a> {
    /// The object.
    pub object: &'a DynamicObject,
    /// The contract.
    pub contract: Contract,
}

impl<'a> Provided<'a> {
    /// The infra cluster or infra machine is provisioned.
    pub fn provisioned(&self) -> bool {
        self.flag("/status/ready", "/status/initialization/provisioned")
    }

    /// The bootstrap data exists.
    pub fn data_secret_created(&self) -> bool {
        self.flag("/status/ready", "/status/initialization/dataSecretCreated")
    }

    /// The control plane is initialized.
    pub fn control_plane_initialized(&self) -> bool {
        self.flag("/status/initialized", "/status/initialization/controlPlaneInitialized")
    }

    /// Name of the Secret with the bootstrap data.
    pub fn data_secret_name(&self) -> Option<String> {
        self.text("/status/dataSecretName")
    }

    /// The provider id of the host.
    pub fn provider_id(&self) -> Option<String> {
        self.text("/spec/providerID")
    }

    /// Failure domain of the host; its path has changed, so both paths are read.
    pub fn failure_domain(&self) -> Option<String> {
        self.text("/status/failureDomain").or_else(|| self.text("/spec/failureDomain"))
    }

    /// Addresses of the host.
    pub fn addresses(&self) -> Vec<MachineAddress> {
        self.at("/status/addresses")
            .and_then(|value| serde_json::from_value(value.clone()).ok())
            .unwrap_or_default()
    }

    /// Failure domains of the infrastructure, sorted by name.
    pub fn failure_domains(&self) -> Vec<FailureDomain> {
        let mut domains: Vec<FailureDomain> = match self.at("/status/failureDomains") {
            Some(Value::Array(items)) => {
                items.iter().filter_map(|item| serde_json::from_value(item.clone()).ok()).collect()
            }
            Some(Value::Object(map)) => map
                .iter()
                .filter_map(|(name, value)| {
                    let mut value = value.clone();
                    value.as_object_mut()?.insert("name".into(), name.clone().into());
                    serde_json::from_value(value).ok()
                })
                .collect(),
            _ => Vec::new(),
        };
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        domains
    }

    /// The endpoint of the control plane, if host and port are set.
    pub fn control_plane_endpoint(&self) -> Option<(String, i32)> {
        let host = self.text("/spec/controlPlaneEndpoint/host")?;
        let port = self.integer("/spec/controlPlaneEndpoint/port").filter(|port| *port > 0)?;
        Some((host, port))
    }

    /// A number of the object, such as `/status/replicas`.
    pub fn integer(&self, pointer: &str) -> Option<i32> {
        self.at(pointer).and_then(Value::as_i64).and_then(|number| i32::try_from(number).ok())
    }

    /// A text of the object; an empty one counts as missing.
    pub fn text(&self, pointer: &str) -> Option<String> {
        self.at(pointer).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// A boolean of the object.
    pub fn boolean(&self, pointer: &str) -> bool {
        self.at(pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A condition of the object: (status, reason, message). The newer format is preferred.
    pub fn condition(&self, type_: &str) -> Option<(String, String, String)> {
        let conditions = self.at("/status/v1beta2/conditions").or_else(|| self.at("/status/conditions"))?;
        let found = conditions.as_array()?.iter().find(|condition| condition["type"] == type_)?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason"), text("message")))
    }

    fn flag(&self, v1beta1: &str, v1beta2: &str) -> bool {
        self.boolean(if self.contract == Contract::V1Beta2 { v1beta2 } else { v1beta1 })
    }

    fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.object.data.pointer(pointer)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn crd(labels: &[(&str, &str)], versions: &[&str]) -> CustomResourceDefinition {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let versions: Vec<Value> =
            versions.iter().map(|name| json!({ "name": name, "served": true, "storage": false })).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "things.example.io", "labels": labels },
            "spec": {
                "group": "example.io", "scope": "Namespaced", "versions": versions,
                "names": { "kind": "Thing", "plural": "things" },
            },
        }))
        .unwrap()
    }

    fn object(data: Value) -> DynamicObject {
        DynamicObject { types: None, metadata: Default::default(), data }
    }

    #[test]
    fn capi_check_2_a_v1beta2_provider_is_read_by_v1beta2_paths_only() {
        let both = crd(&[("cluster.x-k8s.io/v1beta1", "v1"), ("cluster.x-k8s.io/v1beta2", "v1")], &["v1"]);
        let (resource, contract) = resolve(&both).unwrap();
        assert_eq!((resource.version.as_str(), contract), ("v1", Contract::V1Beta2));
        let old = object(json!({ "status": { "ready": true } }));
        assert!(!Provided { object: &old, contract }.provisioned());
        let new = object(json!({ "status": { "initialization": { "provisioned": true } } }));
        assert!(Provided { object: &new, contract }.provisioned());
    }

    #[test]
    fn capi_check_3_a_v1beta1_provider_is_read_by_v1beta1_paths() {
        let old = crd(&[("cluster.x-k8s.io/v1beta1", "v1alpha3_v1beta1")], &["v1alpha3", "v1beta1"]);
        let (resource, contract) = resolve(&old).unwrap();
        assert_eq!((resource.version.as_str(), contract), ("v1beta1", Contract::V1Beta1));
        let ready = object(json!({ "status": { "ready": true } }));
        assert!(Provided { object: &ready, contract }.provisioned());
    }

    #[test]
    fn capi_check_4_an_error_names_the_crd_without_label() {
        let error = resolve(&crd(&[], &["v1"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("things.example.io") && text.contains("cluster.x-k8s.io/v1beta2"), "{text}");
    }

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let labelled =
            crd(&[("cluster.x-k8s.io/v1beta2", "v1alpha9_v1beta2_v1_v1beta10")], &["v1beta2", "v1beta10"]);
        assert_eq!(resolve(&labelled).unwrap().0.version, "v1beta10");
        let labelled = crd(&[("cluster.x-k8s.io/v1beta2", "v1_v2beta1")], &["v1", "v2beta1"]);
        assert_eq!(resolve(&labelled).unwrap().0.version, "v1");
    }

    #[test]
    fn failure_domains_are_sorted() {
        let list = object(json!({ "status": { "failureDomains": [{ "name": "b" }, { "name": "a" }] } }));
        let map =
            object(json!({ "status": { "failureDomains": { "b": {}, "a": { "controlPlane": true } } } }));
        for object in [&list, &map] {
            let domains = Provided { object, contract: Contract::V1Beta2 }.failure_domains();
            assert_eq!(domains.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        }
    }
}
