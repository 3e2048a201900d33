//! The caches that the providers read, and the writes they make.

use std::sync::Arc;
use std::time::Duration;

use drover_access_api::ManagementIds;
use drover_api::capi::v1beta2 as capi;
use drover_api::management::v3 as management;
use drover_api::provisioning::v1 as provisioning;
use drover_api::rke::v1 as rke;
use drover_runtime::apply::Applier;
use drover_runtime::error::{found, is_already_exists, is_not_found};
use drover_runtime::{Cache, Caches, Error, ObjectKey};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::GroupVersionKind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::dynamic::{DynamicKinds, MACHINE_GROUP};
use crate::init::identity;
use crate::keys::{annotations, labels};
use crate::machine::drivers::driver_name;
use crate::selectors;

/// A call to the API may take this long.
const LIMIT: Duration = Duration::from_secs(30);

/// Index of Secrets by type.
pub const BY_TYPE: &str = "provisioning/type";
/// Finds the RKEControlPlane of a management Cluster.
pub const BY_MANAGEMENT_CLUSTER: &str = "provisioning/management-cluster";
/// Finds Clusters by the management ids under which they may be meant.
pub const BY_MANAGEMENT_ID: &str = "provisioning/management-id";
/// Finds a Cluster by its uid, and the management Clusters that have this uid.
pub const BY_CLUSTER_UID: &str = "provisioning/cluster-uid";
/// Finds the Clusters that name a driver's Config, by [`config_value`].
pub const BY_CONFIG: &str = "provisioning/config";
/// Finds NodeDrivers by the name of the driver.
pub const BY_DRIVER: &str = "provisioning/driver";

/// One cache per kind.
#[derive(Clone)]
pub struct Store {
    pub caches: Caches,
    pub dynamic: DynamicKinds,
    pub clusters: Cache<provisioning::Cluster>,
    pub management_ids: ManagementIds,
    pub twins: Cache<management::Cluster>,
    pub tokens: Cache<management::ClusterRegistrationToken>,
    pub drivers: Cache<management::NodeDriver>,
    pub schemas: Cache<management::DynamicSchema>,
    pub settings: Cache<management::Setting>,
    pub rke_clusters: Cache<rke::RKECluster>,
    pub control_planes: Cache<rke::RKEControlPlane>,
    pub bootstraps: Cache<rke::RKEBootstrap>,
    pub bootstrap_templates: Cache<rke::RKEBootstrapTemplate>,
    pub custom_machines: Cache<rke::CustomMachine>,
    pub capi_clusters: Cache<capi::Cluster>,
    pub deployments: Cache<capi::MachineDeployment>,
    pub sets: Cache<capi::MachineSet>,
    pub machines: Cache<capi::Machine>,
    pub health_checks: Cache<capi::MachineHealthCheck>,
    pub secrets: Cache<Secret>,
    pub config_maps: Cache<ConfigMap>,
    pub accounts: Cache<ServiceAccount>,
    pub roles: Cache<Role>,
    pub bindings: Cache<RoleBinding>,
    pub namespaces: Cache<Namespace>,
    pub jobs: Cache<Job>,
    pub pods: Cache<Pod>,
    pub crds: Cache<CustomResourceDefinition>,
}

impl Store {
    pub fn new(caches: &Caches) -> Self {
        let crds = caches.all();
        let store = Self {
            dynamic: DynamicKinds::new(caches, &crds),
            clusters: caches.all(),
            management_ids: ManagementIds::new(caches.all()),
            twins: caches.all(),
            tokens: caches.all(),
            drivers: caches.all(),
            schemas: caches.all(),
            settings: caches.all(),
            rke_clusters: caches.all(),
            control_planes: caches.all(),
            bootstraps: caches.all(),
            bootstrap_templates: caches.all(),
            custom_machines: caches.all(),
            capi_clusters: caches.all(),
            deployments: caches.all(),
            sets: caches.all(),
            machines: caches.all(),
            health_checks: caches.all(),
            secrets: selectors::secrets(caches),
            config_maps: selectors::config_maps(caches),
            accounts: selectors::accounts(caches),
            roles: selectors::roles(caches),
            bindings: selectors::bindings(caches),
            namespaces: caches.all(),
            jobs: selectors::jobs(caches),
            pods: selectors::pods(caches),
            crds,
            caches: caches.clone(),
        };
        store.machines.index_by_label(labels::capi::CLUSTER_NAME);
        store.deployments.index_by_label(labels::OBJECTSET_HASH);
        store.health_checks.index_by_label(labels::OBJECTSET_HASH);
        store.bootstrap_templates.index_by_label(labels::OBJECTSET_HASH);
        store.sets.index_by_label(labels::capi::CLUSTER_NAME);
        store.secrets.index_by_label(labels::CLUSTER_NAME);
        store.secrets.index(BY_TYPE, |secret| secret.type_.iter().cloned().collect());
        store.accounts.index_by_label(labels::MACHINE_NAME);
        store.secrets.index_by_label(labels::SERVICE_ACCOUNT_NAME);
        store.pods.index_by_owner();
        store.clusters.index(BY_MANAGEMENT_ID, identity::claims);
        store.clusters.index(BY_CLUSTER_UID, |cluster| cluster.metadata.uid.iter().cloned().collect());
        store.twins.index(BY_CLUSTER_UID, |twin| {
            twin.annotations().get(annotations::CLUSTER_UID).cloned().into_iter().collect()
        });
        store.clusters.index(BY_CONFIG, |cluster| {
            let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
            let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
            let configs = pools.filter_map(|pool| {
                let reference = &pool.machine_config_ref;
                Some((reference.kind.as_deref()?, reference.name.as_deref()?))
            });
            configs.map(|(kind, name)| config_value(kind, &ObjectKey::new(namespace, name))).collect()
        });
        store.drivers.index(BY_DRIVER, |driver| vec![driver_name(driver)]);
        store.control_planes.index(BY_MANAGEMENT_CLUSTER, |control_plane| {
            vec![control_plane.spec.management_cluster_name.clone()]
        });
        selectors::follow_references(&store);
        store
    }

    /// Ends when every cache holds what there is.
    pub async fn synced(&self) {
        tokio::join!(
            self.clusters.synced(),
            self.twins.synced(),
            self.tokens.synced(),
            self.drivers.synced(),
            self.schemas.synced(),
            self.settings.synced(),
            self.rke_clusters.synced(),
            self.control_planes.synced(),
            self.bootstraps.synced(),
            self.custom_machines.synced(),
            self.capi_clusters.synced(),
            self.deployments.synced(),
            self.sets.synced(),
            self.machines.synced(),
            self.secrets.synced(),
            self.accounts.synced(),
            self.namespaces.synced(),
            self.config_maps.synced(),
            self.roles.synced(),
            self.bindings.synced(),
            self.health_checks.synced(),
            self.bootstrap_templates.synced(),
            self.jobs.synced(),
            self.pods.synced(),
            self.crds.synced(),
        );
    }

    /// Whether every cache that registration reads is complete.
    pub fn is_synced(&self) -> bool {
        self.secrets.is_synced()
            && self.accounts.is_synced()
            && self.machines.is_synced()
            && self.bootstraps.is_synced()
            && self.control_planes.is_synced()
            && self.settings.is_synced()
            && self.twins.is_synced()
    }

    /// The CAPI Cluster an object of this namespace belongs to.
    pub fn capi_cluster(&self, namespace: &str, name: &str) -> Option<Arc<capi::Cluster>> {
        self.capi_clusters.get(&ObjectKey::new(namespace, name))
    }

    /// The live object as a cache has it.
    fn live(&self, kind: &str, group: &str, key: &ObjectKey) -> Option<DynamicObject> {
        match (group, kind) {
            ("", "Secret") => dynamic(self.secrets.get(key)),
            ("", "ConfigMap") => dynamic(self.config_maps.get(key)),
            ("", "ServiceAccount") => dynamic(self.accounts.get(key)),
            ("", "Namespace") => dynamic(self.namespaces.get(key)),
            ("rbac.authorization.k8s.io", "Role") => dynamic(self.roles.get(key)),
            ("rbac.authorization.k8s.io", "RoleBinding") => dynamic(self.bindings.get(key)),
            ("management.cattle.io", "Cluster") => dynamic(self.twins.get(key)),
            ("management.cattle.io", "ClusterRegistrationToken") => dynamic(self.tokens.get(key)),
            ("management.cattle.io", "NodeDriver") => dynamic(self.drivers.get(key)),
            ("management.cattle.io", "DynamicSchema") => dynamic(self.schemas.get(key)),
            ("provisioning.cattle.io", "Cluster") => dynamic(self.clusters.get(key)),
            ("rke.cattle.io", "RKECluster") => dynamic(self.rke_clusters.get(key)),
            ("rke.cattle.io", "RKEControlPlane") => dynamic(self.control_planes.get(key)),
            ("rke.cattle.io", "RKEBootstrap") => dynamic(self.bootstraps.get(key)),
            ("rke.cattle.io", "RKEBootstrapTemplate") => dynamic(self.bootstrap_templates.get(key)),
            ("rke.cattle.io", "CustomMachine") => dynamic(self.custom_machines.get(key)),
            ("cluster.x-k8s.io", "Cluster") => dynamic(self.capi_clusters.get(key)),
            ("cluster.x-k8s.io", "MachineDeployment") => dynamic(self.deployments.get(key)),
            ("cluster.x-k8s.io", "Machine") => dynamic(self.machines.get(key)),
            ("cluster.x-k8s.io", "MachineHealthCheck") => dynamic(self.health_checks.get(key)),
            ("apiextensions.k8s.io", "CustomResourceDefinition") => dynamic(self.crds.get(key)),
            _ => None,
        }
    }
}

/// The value under which [`BY_CONFIG`] finds the Clusters that name a Config.
pub fn config_value(kind: &str, key: &ObjectKey) -> String {
    format!("{kind}/{key}")
}

fn dynamic<K: Serialize>(object: Option<Arc<K>>) -> Option<DynamicObject> {
    serde_json::from_value(serde_json::to_value(object?.as_ref()).ok()?).ok()
}

/// `group/version`, kind → how the API calls it.
pub fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let lower = kind.to_lowercase();
    let plural = match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if lower.ends_with('s') => format!("{lower}es"),
        None => format!("{lower}s"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural)
}

/// One controller's writes, under its own field manager.
#[derive(Clone)]
pub struct Writer {
    store: Store,
    applier: Applier,
}

impl Writer {
    pub fn new(store: &Store, controller: &str, scope: &str) -> Self {
        let applier = Applier::new(store.caches.client().clone(), controller, scope);
        Self { store: store.clone(), applier }
    }

    /// An API for any kind.
    pub fn api(&self, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = resource(api_version, kind);
        let client = self.store.caches.client().clone();
        if namespace.is_empty() {
            Api::all_with(client, &resource)
        } else {
            Api::namespaced_with(client, namespace, &resource)
        }
    }

    /// Applies an object; not sent when nothing would change. Returns the server's answer if it was sent.
    pub async fn apply(&self, desired: &Value) -> Result<Option<DynamicObject>, Error> {
        self.send(desired, false, None).await
    }

    /// Applies an object of which the live version is known.
    pub async fn apply_over(
        &self,
        desired: &Value,
        live: &DynamicObject,
    ) -> Result<Option<DynamicObject>, Error> {
        self.send(desired, false, Some(live)).await
    }

    /// Applies a status; of `desired` only name and status count.
    pub async fn apply_status(&self, desired: &Value) -> Result<Option<DynamicObject>, Error> {
        self.send(desired, true, None).await
    }

    /// Applies a status of an object of which the live version is known.
    pub async fn apply_status_over(
        &self,
        desired: &Value,
        live: &DynamicObject,
    ) -> Result<Option<DynamicObject>, Error> {
        self.send(desired, true, Some(live)).await
    }

    async fn send(
        &self,
        desired: &Value,
        status: bool,
        live: Option<&DynamicObject>,
    ) -> Result<Option<DynamicObject>, Error> {
        let (api_version, kind, key) = identity(desired);
        let doing = format!("apply {kind} {key}");
        let object: DynamicObject =
            serde_json::from_value(desired.clone()).map_err(Error::other(doing.clone()))?;
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let cached = if live.is_none() { self.store.live(kind, group, &key) } else { None };
        let dynamic = match (live, &cached) {
            (None, None) if group == MACHINE_GROUP => self.store.dynamic.get(group, kind, &key).await?,
            _ => None,
        };
        let live = live.or(cached.as_ref()).or(dynamic.as_deref());
        let api = self.api(api_version, kind, &key.namespace);
        let applied = async {
            if status {
                self.applier.apply_dynamic_status(&api, &object, live).await
            } else {
                self.applier.apply_dynamic(&api, &object, live).await
            }
        };
        match tokio::time::timeout(LIMIT, applied).await {
            Ok(applied) => Ok(applied?.sent()),
            Err(late) => Err(Error::other(doing)(late)),
        }
    }

    /// Creates an object with a known name; one that is there already is left as it is. Returns whether it was
    /// made now.
    pub async fn create(&self, desired: &Value) -> Result<bool, Error> {
        let (api_version, kind, key) = identity(desired);
        let doing = format!("create {kind} {key}");
        let object: DynamicObject =
            serde_json::from_value(desired.clone()).map_err(Error::other(doing.clone()))?;
        let api = self.api(api_version, kind, &key.namespace);
        match within(&doing, api.create(&PostParams::default(), &object)).await? {
            Ok(_) => Ok(true),
            Err(error) if is_already_exists(&error) => Ok(false),
            Err(source) => Err(Error::Api { operation: doing, source }),
        }
    }

    /// The object as the API has it now, not as a cache remembers it.
    pub async fn get(
        &self,
        api_version: &str,
        kind: &str,
        key: &ObjectKey,
    ) -> Result<Option<DynamicObject>, Error> {
        let doing = format!("get {kind} {key}");
        let api = self.api(api_version, kind, &key.namespace);
        found(within(&doing, api.get(&key.name)).await?).map_err(Error::api(doing))
    }

    /// A Secret as the API has it now.
    pub async fn find_secret(&self, key: &ObjectKey) -> Result<Option<Secret>, Error> {
        let doing = format!("get Secret {key}");
        let api: Api<Secret> = Api::namespaced(self.store.caches.client().clone(), &key.namespace);
        within(&doing, api.get_opt(&key.name)).await?.map_err(Error::api(doing))
    }

    /// Deletes an object and what it owns; a gone one is done.
    pub async fn delete(&self, api_version: &str, kind: &str, key: &ObjectKey) -> Result<(), Error> {
        let doing = format!("delete {kind} {key}");
        let api = self.api(api_version, kind, &key.namespace);
        match within(&doing, api.delete(&key.name, &DeleteParams::background())).await? {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(source) => Err(Error::Api { operation: doing, source }),
        }
    }

    /// Deletes exactly this object, not one of the same name that was created since.
    pub async fn delete_this(&self, object: &DynamicObject) -> Result<(), Error> {
        let types = object.types.clone().unwrap_or_default();
        let key = ObjectKey::of(object);
        let doing = format!("delete {} {key}", types.kind);
        let api = self.api(&types.api_version, &types.kind, &key.namespace);
        let only = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::background().preconditions(only);
        match within(&doing, api.delete(&key.name, &params)).await? {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(source) => Err(Error::Api { operation: doing, source }),
        }
    }

    /// Merge patch; a resourceVersion or uid in the patch guards it.
    pub async fn merge(
        &self,
        api_version: &str,
        kind: &str,
        key: &ObjectKey,
        patch: Value,
    ) -> Result<(), Error> {
        let doing = format!("patch {kind} {key}");
        let api = self.api(api_version, kind, &key.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        within(&doing, api.patch(&key.name, &params, &patch)).await?.map(|_| ()).map_err(Error::api(doing))
    }

    /// Writes a Secret whole, with the resourceVersion it was read with.
    pub async fn put_secret(&self, secret: &Secret) -> Result<(), Error> {
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let doing = format!("update Secret {namespace}/{name}");
        let mut secret = secret.clone();
        // The cache keeps only part of it; absent means "as it is".
        secret.metadata.managed_fields = None;
        let api: Api<Secret> = Api::namespaced(self.store.caches.client().clone(), namespace);
        let stored = within(&doing, api.replace(name, &PostParams::default(), &secret))
            .await?
            .map_err(Error::api(doing))?;
        let revision = stored.metadata.resource_version.unwrap_or_default();
        let key = ObjectKey::new(namespace, name);
        self.store.secrets.shows(&key, &revision, Duration::from_secs(2)).await;
        Ok(())
    }

    /// Adds (or removes) a finalizer.
    pub async fn finalizer(
        &self,
        object: &DynamicObject,
        finalizer: &str,
        present: bool,
    ) -> Result<bool, Error> {
        let types = object.types.clone().unwrap_or_default();
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let api = self.api(&types.api_version, &types.kind, namespace);
        if present {
            drover_runtime::finalizer::ensure(&api, object, finalizer).await
        } else {
            drover_runtime::finalizer::remove(&api, object, finalizer).await
        }
    }
}

async fn within<T>(doing: &str, call: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(LIMIT, call).await.map_err(|late| Error::other(doing.to_owned())(late))
}

fn identity(object: &Value) -> (&str, &str, ObjectKey) {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let key = ObjectKey::new(text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default(), key)
}

/// A typed object as a dynamic one, with its types set.
pub fn to_dynamic<K: Serialize>(object: &K) -> Result<DynamicObject, Error> {
    let value = serde_json::to_value(object).map_err(Error::other("read an object"))?;
    serde_json::from_value(value).map_err(Error::other("read an object"))
}

/// Name and status, ready to be applied.
pub fn status_of(api_version: &str, kind: &str, key: &ObjectKey, status: Value) -> Value {
    let mut meta = json!({"name": key.name});
    if !key.namespace.is_empty() {
        meta["namespace"] = json!(key.namespace);
    }
    json!({"apiVersion": api_version, "kind": kind, "metadata": meta, "status": status})
}
