//! Access to the clusters that are managed. Not being connected is data, not an error.

use std::sync::Arc;
use std::time::Duration;

use drover_runtime::error::{found, is_not_found};
use drover_runtime::{Cache, ObjectKey};
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::Value;

/// Every call to a managed cluster ends after this long.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A cluster cannot be reached.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Disconnected {
    /// Why, in words for a condition.
    pub why: String,
    /// It is expected back in a moment, as after a restart of the manager: what was known of it still counts. Its return
    /// is an event, and so is the end of that patience.
    pub expected: bool,
}

impl<T: Into<String>> From<T> for Disconnected {
    fn from(why: T) -> Self {
        Self { why: why.into(), expected: false }
    }
}

/// What changed in a managed cluster.
#[derive(Clone, Debug)]
pub struct WorkloadChange {
    /// Key of the CAPI Cluster.
    pub cluster: ObjectKey,
    /// Provider id of the Node that changed or whose pods did; `None` when the connection itself changed.
    pub provider_id: Option<String>,
}

/// All managed clusters.
pub trait Workload: Send + Sync + 'static {
    /// The cluster, if it is connected now.
    fn cluster(&self, cluster: &ObjectKey) -> Result<Arc<dyn WorkloadCluster>, Disconnected>;

    /// Whether whoever made the cluster is about to delete it. Its connection goes before its Machines do, which is then
    /// no trouble.
    fn is_leaving(&self, _cluster: &ObjectKey) -> bool {
        false
    }

    /// Calls `listener` for every change of connections, Nodes and pods on draining Nodes. It does not block.
    fn on_change(&self, listener: Box<dyn Fn(&WorkloadChange) + Send + Sync>);
}

/// What came of an eviction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Evicted {
    /// The pod is on its way out, or was gone.
    Accepted,
    /// A disruption budget holds it.
    Blocked(String),
}

/// One managed cluster.
pub trait WorkloadCluster: Send + Sync {
    /// The Nodes, from a live copy.
    fn nodes(&self) -> Vec<Arc<Node>>;

    /// The pods on a Node.
    fn pods<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<Pod>, kube::Error>>;

    /// Whether a DaemonSet exists.
    fn daemon_set_exists<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<bool, kube::Error>>;

    /// Names of the volumes that are attached to a Node by VolumeAttachments.
    fn attached_volumes<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<String>, kube::Error>>;

    /// Changes a Node by merge patch; a resourceVersion in the patch guards it.
    fn patch_node<'a>(&'a self, node: &'a str, patch: Value) -> BoxFuture<'a, Result<(), kube::Error>>;

    /// Evicts a pod.
    fn evict<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        grace_seconds: Option<u32>,
    ) -> BoxFuture<'a, Result<Evicted, kube::Error>>;

    /// Deletes a Node; a gone one is done.
    fn delete_node<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<(), kube::Error>>;
}

/// A managed cluster behind an ordinary client.
pub struct ClientCluster {
    client: Client,
    nodes: Cache<Node>,
}

impl ClientCluster {
    /// `nodes` must be a live copy made with the same client.
    pub fn new(client: Client, nodes: Cache<Node>) -> Self {
        Self { client, nodes }
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(result) => result,
        Err(_) => Err(kube::Error::Service("the cluster did not answer within 10 seconds".into())),
    }
}

impl WorkloadCluster for ClientCluster {
    fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.list()
    }

    fn pods<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<Pod>, kube::Error>> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Box::pin(async move { Ok(limited(api.list(&params)).await?.items) })
    }

    fn daemon_set_exists<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<bool, kube::Error>> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), namespace);
        Box::pin(async move { Ok(limited(api.get_opt(name)).await?.is_some()) })
    }

    fn attached_volumes<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<String>, kube::Error>> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        Box::pin(async move {
            // A cluster that does not serve the kind attaches nothing by it.
            let list = found(limited(api.list(&ListParams::default())).await)?;
            let attached = list.into_iter().flat_map(|list| list.items).filter(|attachment| {
                attachment.spec.node_name == node
                    && attachment.status.as_ref().is_some_and(|status| status.attached)
            });
            Ok(attached.map(|attachment| attachment.name_any()).collect())
        })
    }

    fn patch_node<'a>(&'a self, node: &'a str, patch: Value) -> BoxFuture<'a, Result<(), kube::Error>> {
        let api: Api<Node> = Api::all(self.client.clone());
        Box::pin(async move {
            let params =
                PatchParams { field_manager: Some("drover-machine".into()), ..PatchParams::default() };
            limited(api.patch(node, &params, &Patch::Merge(patch))).await.map(|_| ())
        })
    }

    fn evict<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        grace_seconds: Option<u32>,
    ) -> BoxFuture<'a, Result<Evicted, kube::Error>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        Box::pin(async move {
            let delete_options = grace_seconds.map(|seconds| DeleteParams::default().grace_period(seconds));
            let params = EvictParams { delete_options, ..EvictParams::default() };
            match limited(api.evict(name, &params)).await {
                Ok(_) => Ok(Evicted::Accepted),
                Err(error) if is_not_found(&error) => Ok(Evicted::Accepted),
                Err(kube::Error::Api(status)) if status.code == 429 => {
                    Ok(Evicted::Blocked(status.message.clone()))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn delete_node<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<(), kube::Error>> {
        let api: Api<Node> = Api::all(self.client.clone());
        Box::pin(async move { found(limited(api.delete(node, &DeleteParams::default())).await).map(|_| ()) })
    }
}
