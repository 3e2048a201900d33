//! The kinds that the providers write, and the cache that has the live objects of each.

use std::fmt::Debug;
use std::future::Future;

use drover_api::rke::v1 as rke;
use drover_api::{capi::v1beta2 as capi, management::v3 as management, provisioning::v1 as provisioning};
use drover_runtime::apply::{Applied, Applier};
use drover_runtime::{Cache, Error, ObjectKey};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::core::object::HasStatus;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Store;

/// A kind that is known at compile time. Kinds that are not go through [`DynamicWriter`](super::DynamicWriter).
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The live objects.
    fn cache(store: &Store) -> &Cache<Self>;

    /// The API of the kind; the namespace of a cluster-scoped kind is empty.
    fn api(client: Client, namespace: &str) -> Api<Self>;

    fn apply(
        applier: &Applier,
        desired: &Self,
        live: Option<&Self>,
    ) -> impl Future<Output = Result<Applied<Self>, Error>> + Send;

    fn apply_status(
        applier: &Applier,
        desired: &Self,
        live: Option<&Self>,
    ) -> impl Future<Output = Result<Applied<Self>, Error>> + Send;
}

macro_rules! kinds {
    ($($kind:ty => $cache:ident, $apply:ident, $apply_status:ident, |$client:ident, $namespace:ident| $api:expr;)*) => {$(
        impl Kind for $kind {
            fn cache(store: &Store) -> &Cache<Self> {
                &store.$cache
            }

            fn api($client: Client, $namespace: &str) -> Api<Self> {
                $api
            }

            async fn apply(
                applier: &Applier,
                desired: &Self,
                live: Option<&Self>,
            ) -> Result<Applied<Self>, Error> {
                applier.$apply(desired, live).await
            }

            async fn apply_status(
                applier: &Applier,
                desired: &Self,
                live: Option<&Self>,
            ) -> Result<Applied<Self>, Error> {
                applier.$apply_status(desired, live).await
            }
        }
    )*};
}

macro_rules! namespaced {
    ($($kind:ty => $cache:ident;)*) => {
        kinds! {$($kind => $cache, apply, apply_status, |client, namespace| Api::namespaced(client, namespace);)*}
    };
}

macro_rules! cluster_scoped {
    ($($kind:ty => $cache:ident;)*) => {
        kinds! {$($kind => $cache, apply_cluster, apply_cluster_status, |client, _namespace| Api::all(client);)*}
    };
}

namespaced! {
    Secret => secrets;
    ConfigMap => config_maps;
    ServiceAccount => accounts;
    Role => roles;
    RoleBinding => bindings;
    Job => jobs;
    management::ClusterRegistrationToken => tokens;
    provisioning::Cluster => clusters;
    rke::RKECluster => rke_clusters;
    rke::RKEControlPlane => control_planes;
    rke::RKEBootstrap => bootstraps;
    rke::RKEBootstrapTemplate => bootstrap_templates;
    rke::CustomMachine => custom_machines;
    capi::Cluster => capi_clusters;
    capi::MachineDeployment => deployments;
    capi::Machine => machines;
    capi::MachineHealthCheck => health_checks;
}

cluster_scoped! {
    Namespace => namespaces;
    management::Cluster => twins;
    management::NodeDriver => drivers;
    management::DynamicSchema => schemas;
    management::Setting => settings;
    CustomResourceDefinition => crds;
}

/// An object with nothing but its name and a status, as [`Writer::apply_status`](super::Writer::apply_status) sends it.
pub fn status_of<K>(key: &ObjectKey, status: K::Status) -> K
where
    K: Kind + Default + HasStatus,
{
    let mut object = K::default();
    let meta = object.meta_mut();
    meta.name = Some(key.name.clone());
    meta.namespace = Some(key.namespace.clone()).filter(|namespace| !namespace.is_empty());
    *object.status_mut() = Some(status);
    object
}
