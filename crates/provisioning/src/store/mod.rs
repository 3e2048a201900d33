//! The caches that the providers read; [`writer`] has the writes they make.

pub mod kind;
pub mod writer;

use std::sync::Arc;

use drover_access_api::ManagementIds;
use drover_api::capi::v1beta2 as capi;
use drover_api::management::v3 as management;
use drover_api::provisioning::v1 as provisioning;
use drover_api::rke::v1 as rke;
use drover_runtime::{Cache, Caches, ObjectKey};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

pub use self::kind::{Kind, status_of};
pub use self::writer::{DynamicWriter, Writer};
use crate::dynamic::DynamicKinds;
use crate::init::twin::identity;
use crate::keys::{annotations, labels};
use crate::machine::drivers::driver_name;
use crate::selectors;

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
}

/// The value under which [`BY_CONFIG`] finds the Clusters that name a Config.
pub fn config_value(kind: &str, key: &ObjectKey) -> String {
    format!("{kind}/{key}")
}
