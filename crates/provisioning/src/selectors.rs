//! Which objects of Kubernetes' own kinds are mirrored. On someone's kube-apiserver there are many that are none of Drover's
//! business, and some that it should not even read (docs/design/0016-selectors-of-caches.md).
//!
//! What people make and Drover's objects refer to by name is mirrored as long as it is referred to: [`follow_references`].

use std::sync::Arc;

use drover_api::secret_types as types;
use drover_runtime::cache::{Lookup, Selector};
use drover_runtime::{Cache, Caches, Error, ObjectKey};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};

use crate::admission::{SHARED_CREDENTIALS, credential_key};
use crate::bootstrap::abridged::abridge;
use crate::controlplane::planner::render::selector_files;
use crate::init::twin::DEFAULT_TOKEN;
use crate::init::twin::token::secret_name;
use crate::init::{kubeconfig, log};
use crate::keys::labels;
use crate::store::Store;

/// Types that only Rancher's providers use.
const OWN_TYPES: [&str; 4] =
    [types::MACHINE_PLAN, types::MACHINE_STATE, types::MACHINE_REQUEST, types::CLUSTER_STATE];

/// Secrets: by type where the type is our own, otherwise by label or name. No Secret matches two of these selectors.
pub fn secrets(caches: &Caches) -> Cache<Secret> {
    let mut all: Vec<Selector> =
        OWN_TYPES.iter().map(|type_| Selector::fields(format!("type={type_}"))).collect();
    let others = OWN_TYPES.map(|type_| format!("type!={type_}")).join(",");
    // Kubeconfigs and bootstrap scripts, as Cluster API marks them; also those of other providers' clusters.
    all.push(Selector { labels: Some(labels::capi::CLUSTER_NAME.into()), fields: Some(others) });
    // Tokens of the accounts of machines.
    all.push(Selector {
        labels: Some(labels::SERVICE_ACCOUNT_NAME.into()),
        fields: Some("type=kubernetes.io/service-account-token".into()),
    });
    // Credentials of clusters, and cloud credentials that all clusters may use.
    all.push(Selector::fields(format!("metadata.namespace={SHARED_CREDENTIALS}")));
    // Registration tokens. The default token of a cluster is found by its name: earlier versions had no label.
    let default = secret_name(DEFAULT_TOKEN);
    all.push(Selector::fields(format!("metadata.name={default}")));
    all.push(Selector {
        labels: Some(labels::REGISTRATION_TOKEN.into()),
        fields: Some(format!("metadata.name!={default}")),
    });
    caches.select_any(all, abridge)
}

/// ConfigMaps: the provisioning logs.
pub fn config_maps(caches: &Caches) -> Cache<ConfigMap> {
    caches.select_any(vec![Selector::fields(format!("metadata.name={}", log::NAME))], |_| {})
}

/// The accounts of machines.
pub fn accounts(caches: &Caches) -> Cache<ServiceAccount> {
    caches.select(Selector::labels(labels::SERVICE_ACCOUNT_ROLE))
}

/// What the accounts of machines may do. Those of earlier versions get the label when they are applied.
pub fn roles(caches: &Caches) -> Cache<Role> {
    caches.select(Selector::labels(labels::BOOTSTRAP_NAME))
}

pub fn bindings(caches: &Caches) -> Cache<RoleBinding> {
    caches.select(Selector::labels(labels::BOOTSTRAP_NAME))
}

/// Jobs that make and remove machines.
pub fn jobs(caches: &Caches) -> Cache<Job> {
    caches.select(Selector::labels(labels::INFRA_MACHINE_NAME))
}

/// The pods of these Jobs.
pub fn pods(caches: &Caches) -> Cache<Pod> {
    caches.select(Selector::labels(labels::INFRA_MACHINE_NAME))
}

/// Mirrors the Secrets and ConfigMaps that clusters refer to by name.
pub fn follow_references(store: &Store) {
    let (secrets, config_maps) = (store.secrets.clone(), store.config_maps.clone());
    store.control_planes.subscribe(move |change| {
        let owner = format!("files of {}", change.key);
        let named = |wanted: &str| -> Vec<ObjectKey> {
            let spec = change.new.iter().map(|plane| &plane.spec);
            let all = spec.flat_map(selector_files::references).filter(|(kind, _)| *kind == wanted);
            all.map(|(_, source)| change.key.sibling(&source.name)).collect()
        };
        secrets.refer(&owner, named("Secret"));
        config_maps.refer(&owner, named("ConfigMap"));
    });
    let secrets = store.secrets.clone();
    store.clusters.subscribe(move |change| {
        let owner = format!("credentials of {}", change.key);
        secrets.refer(&owner, change.new.map(|cluster| credentials(cluster)).unwrap_or_default());
    });
    let secrets = store.secrets.clone();
    store.capi_clusters.subscribe(move |change| {
        let foreign = |cluster: &&Arc<drover_api::capi::v1beta2::Cluster>| {
            cluster.spec.infrastructure_ref.as_ref().is_none_or(|infra| infra.kind != "RKECluster")
        };
        // Without its label it cannot be used, but then the reason can be reported.
        let name = kubeconfig::secret_name(&change.key.name);
        let found = change.new.filter(foreign).map(|_| change.key.sibling(name));
        secrets.refer(&format!("kubeconfig of {}", change.key), found);
    });
}

/// The cloud credentials that a cluster names, but for those that all clusters may use.
fn credentials(cluster: &drover_api::provisioning::v1::Cluster) -> Vec<ObjectKey> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
    let of_pools = pools.map(|pool| &pool.cloud_credential_secret_name);
    let names = of_pools.chain([&cluster.spec.cloud_credential_secret_name]).filter(|name| !name.is_empty());
    names
        .map(|name| credential_key(namespace, name))
        .filter(|key| key.namespace != SHARED_CREDENTIALS)
        .collect()
}

/// An error while a cache has not read an object that it holds by reference: no event is needed, the pass is made again.
pub fn require_read<K: drover_runtime::cache::Cached>(
    cache: &Cache<K>,
    keys: impl IntoIterator<Item = ObjectKey>,
) -> Result<(), Error> {
    let unread = keys.into_iter().find(|key| matches!(cache.look_up(key), Lookup::Unknown));
    unread.map_or(Ok(()), |key| Err(Error::Stale(key.to_string())))
}

/// The same for the cloud credentials of a cluster.
pub fn require_credentials(
    store: &Store,
    cluster: &drover_api::provisioning::v1::Cluster,
) -> Result<(), Error> {
    require_read(&store.secrets, credentials(cluster))
}
