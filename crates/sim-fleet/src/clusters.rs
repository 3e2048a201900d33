//! The API objects of a fleet's clusters: each is an ordinary Cluster with a control plane pool and a worker pool.

use drover_api::provisioning::v1::{Cluster, ClusterSpec, RKEConfig, RKEMachinePool};
use drover_runtime::Error;
use drover_runtime::error::{is_already_exists, is_not_found};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};

use crate::driver;

/// Label of the clusters of a fleet.
pub const LABEL: &str = "drover.io/sim-fleet";
/// Value of the label.
pub const LABEL_VALUE: &str = "true";
/// Name of the pool with control plane and etcd.
pub const CONTROL_PLANE_POOL: &str = "cp";
/// Name of the pool of workers.
pub const WORKER_POOL: &str = "w";

/// The properties of every cluster of a fleet.
#[derive(Clone, Debug)]
pub struct Shape {
    pub namespace: String,
    pub workers: i32,
    /// `v1.34.1+k3s1`.
    pub version: String,
}

/// Returns the name of the cluster with this number.
pub fn name(number: usize) -> String {
    format!("sim-{number:04}")
}

/// Returns the Cluster object.
pub fn cluster(shape: &Shape, name: &str) -> Cluster {
    let pool = |pool: &str, quantity: i32| RKEMachinePool {
        name: pool.to_owned(),
        quantity: Some(quantity),
        machine_config_ref: ObjectReference {
            kind: Some(driver::configs().kind),
            name: Some(config_name(name, pool)),
            ..ObjectReference::default()
        },
        ..RKEMachinePool::default()
    };
    let control_plane =
        RKEMachinePool { etcd_role: true, control_plane_role: true, ..pool(CONTROL_PLANE_POOL, 1) };
    let workers = RKEMachinePool { worker_role: true, ..pool(WORKER_POOL, shape.workers) };
    let mut cluster = Cluster::new(
        name,
        ClusterSpec {
            kubernetes_version: shape.version.clone(),
            rke_config: Some(RKEConfig {
                machine_pools: vec![control_plane, workers],
                ..RKEConfig::default()
            }),
            ..ClusterSpec::default()
        },
    );
    cluster.metadata.namespace = Some(shape.namespace.clone());
    cluster.labels_mut().insert(LABEL.into(), LABEL_VALUE.into());
    cluster
}

fn config_name(cluster: &str, pool: &str) -> String {
    format!("{cluster}-{pool}")
}

/// Creates the namespace if it does not exist.
pub async fn ensure_namespace(client: &Client, name: &str) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    existing(namespaces.create(&PostParams::default(), &namespace).await, || {
        format!("create Namespace {name}")
    })
}

/// Creates the Cluster and the configurations of its pools. Existing objects are not changed.
pub async fn create(client: &Client, shape: &Shape, name: &str) -> Result<(), Error> {
    let params = PostParams::default();
    let configs: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &shape.namespace, &driver::configs());
    for pool in [CONTROL_PLANE_POOL, WORKER_POOL] {
        let config = DynamicObject::new(&config_name(name, pool), &driver::configs());
        existing(configs.create(&params, &config).await, || format!("create SimConfig {name}-{pool}"))?;
    }
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), &shape.namespace);
    existing(clusters.create(&params, &cluster(shape, name)).await, || format!("create Cluster {name}"))
}

fn existing<T>(result: Result<T, kube::Error>, doing: impl FnOnce() -> String) -> Result<(), Error> {
    match result {
        Err(error) if !is_already_exists(&error) => Err(Error::api(doing())(error)),
        _ => Ok(()),
    }
}

/// Deletes a Cluster. Succeeds if it does not exist.
pub async fn delete(client: &Client, cluster: &Cluster) -> Result<(), Error> {
    let clusters: Api<Cluster> =
        Api::namespaced(client.clone(), cluster.metadata.namespace.as_deref().unwrap_or_default());
    match clusters.delete(&cluster.name_any(), &DeleteParams::default()).await {
        Err(error) if !is_not_found(&error) => {
            Err(Error::api(format!("delete Cluster {}", cluster.name_any()))(error))
        }
        _ => Ok(()),
    }
}

/// Patches the Cluster with a merge patch.
pub async fn change(client: &Client, cluster: &Cluster, patch: serde_json::Value) -> Result<(), Error> {
    let name = cluster.name_any();
    let clusters: Api<Cluster> =
        Api::namespaced(client.clone(), cluster.metadata.namespace.as_deref().unwrap_or_default());
    let patched = clusters.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(|_| ()).map_err(Error::api(format!("change Cluster {name}")))
}

/// Whether the current spec of the Cluster is fully applied.
pub fn is_ready(cluster: &Cluster) -> bool {
    let Some(status) = &cluster.status else { return false };
    let observed = Some(status.observed_generation) == cluster.metadata.generation;
    observed && status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Returns the message if the Cluster is reported as failed.
pub fn failure(cluster: &Cluster) -> Option<&str> {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let mut failed = conditions.filter(|c| c.type_ == "Ready" && c.status == "False" && c.reason == "Error");
    failed.next().map(|condition| condition.message.as_str())
}
