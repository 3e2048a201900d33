//! Objects of kinds that exist only at run time: Configs, machines and templates of drivers, and infra machines of others.
//! They are read from caches, which are started once their CRD is Established.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drover_runtime::{Cache, Caches, Error, ObjectKey};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use parking_lot::Mutex;

use crate::keys::labels;

/// How long a pass waits for the first list of a kind, until it gives way to others.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// Index of CRDs by `<group>/<kind>`.
const BY_KIND: &str = "provisioning/kind";
/// Index of CRDs by group.
const BY_GROUP: &str = "provisioning/group";

/// Group of the Configs of drivers.
pub const CONFIG_GROUP: &str = "rke-machine-config.cattle.io";
/// Group of the machines of drivers and of their templates.
pub const MACHINE_GROUP: &str = "rke-machine.cattle.io";

/// Finds them. Clones share it.
#[derive(Clone)]
pub struct DynamicKinds {
    caches: Caches,
    crds: Cache<CustomResourceDefinition>,
    /// The caches that have their indexes, by name of the CRD.
    indexed: Arc<Mutex<HashMap<String, Cache<DynamicObject>>>>,
}

impl DynamicKinds {
    pub fn new(caches: &Caches, crds: &Cache<CustomResourceDefinition>) -> Self {
        crds.index(BY_KIND, |crd| vec![format!("{}/{}", crd.spec.group, crd.spec.names.kind)]);
        crds.index(BY_GROUP, |crd| vec![crd.spec.group.clone()]);
        Self { caches: caches.clone(), crds: crds.clone(), indexed: Arc::default() }
    }

    /// Where a kind is served; `None` without an Established CRD.
    pub fn resource(&self, group: &str, kind: &str) -> Option<ApiResource> {
        let found = self.crds.by_index(BY_KIND, &format!("{group}/{kind}"));
        found.first().filter(|crd| is_established(crd)).and_then(|crd| resource_of(crd))
    }

    /// The kinds of a group.
    pub fn of_group(&self, group: &str) -> Vec<String> {
        let crds = self.crds.by_index(BY_GROUP, group);
        crds.iter().map(|crd| crd.spec.names.kind.clone()).collect()
    }

    /// The live copy of a kind, once it is complete; `None` without an Established CRD.
    pub async fn cache(&self, group: &str, kind: &str) -> Result<Option<Cache<DynamicObject>>, Error> {
        let Some(resource) = self.resource(group, kind) else { return Ok(None) };
        let name = format!("{}.{}", resource.plural, resource.group);
        let cache = self.caches.dynamic(&resource);
        let known = self.indexed.lock().insert(name.clone(), cache.clone());
        if !known.is_some_and(|known| known.is(&cache)) {
            cache.index_by_label(labels::OBJECTSET_HASH);
        }
        match tokio::time::timeout(FIRST_LIST, cache.synced()).await {
            Ok(()) => Ok(Some(cache)),
            Err(_) => Err(Error::Stale(name)),
        }
    }

    /// One object of such a kind.
    pub async fn get(
        &self,
        group: &str,
        kind: &str,
        key: &ObjectKey,
    ) -> Result<Option<Arc<DynamicObject>>, Error> {
        Ok(self.cache(group, kind).await?.and_then(|cache| cache.get(key)))
    }
}

pub fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Drivers' kinds have `v1`; of others, what is stored.
pub fn resource_of(crd: &CustomResourceDefinition) -> Option<ApiResource> {
    let mut served = crd.spec.versions.iter().filter(|version| version.served);
    let version = served
        .clone()
        .find(|version| version.name == "v1")
        .or_else(|| served.clone().find(|version| version.storage))
        .or_else(|| served.next())?;
    let gvk = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
    Some(ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kind_is_read_where_its_crd_serves_it() {
        let crd = |versions: serde_json::Value| -> CustomResourceDefinition {
            let spec = json!({
                "group": "example.com", "scope": "Namespaced", "versions": versions,
                "names": {"kind": "Proxy", "plural": "proxies"},
            });
            serde_json::from_value(json!({"metadata": {"name": "proxies.example.com"}, "spec": spec}))
                .unwrap()
        };
        let version = |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
        let found = |versions| resource_of(&crd(versions)).map(|resource| resource.api_version);
        let both = json!([version("v1", true, false), version("v2", true, true)]);
        assert_eq!(found(both).as_deref(), Some("example.com/v1"));
        let newer =
            json!([version("v1", false, false), version("v2", true, false), version("v3", true, true)]);
        assert_eq!(found(newer).as_deref(), Some("example.com/v3"));
        assert_eq!(found(json!([version("v1", false, true)])), None);
        let any = resource_of(&crd(json!([version("v1", true, true)]))).unwrap();
        assert_eq!(any.plural, "proxies");
    }
}
