//! One connected cluster.

use std::sync::Arc;
use std::time::Duration;

use drover_runtime::error::{found, is_not_found};
use drover_runtime::{Cache, ObjectKey};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Semaphore;

/// Every call to a cluster ends after this time, including the wait for other calls to the same cluster.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Concurrent calls to one cluster. Each uses a connection and a worker of a controller, and a cluster that does not
/// respond must not use all of them.
pub const MAX_CALLS: usize = 16;

/// A call took longer than [`CALL_LIMIT`]; in `kube::Error::Service`.
#[derive(Debug, thiserror::Error)]
#[error("the cluster's API did not answer within {} s", CALL_LIMIT.as_secs())]
pub struct CallTimedOut;

/// The result of an eviction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Eviction {
    /// The pod is being deleted, or does not exist any more.
    Accepted,
    /// A disruption budget does not allow it, with the API's message.
    Blocked(String),
}

/// How a pod is removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodRemoval {
    /// Deletes the pod without asking disruption budgets.
    pub force: bool,
    /// Seconds that the pod gets to stop; its own number if `None`.
    pub grace_seconds: Option<u32>,
}

/// A connected cluster. Clones share its connection, its watches and its limits.
#[derive(Clone)]
pub struct ClusterHandle {
    client: Client,
    nodes: Cache<Node>,
    calls: Arc<Semaphore>,
}

impl ClusterHandle {
    /// `nodes` must be a live copy made with the same client.
    pub fn new(client: Client, nodes: Cache<Node>) -> Self {
        Self { client, nodes, calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    /// A client for other kinds. The caller limits its calls in time.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The live copy of the Nodes, without their `status.images`.
    pub fn nodes(&self) -> &Cache<Node> {
        &self.nodes
    }

    /// A Node from the live copy.
    pub fn cached_node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::cluster(name))
    }

    /// Calls that wait for the cluster now.
    pub fn pending_calls(&self) -> usize {
        MAX_CALLS - self.calls.available_permits()
    }

    /// A Node as the API has it, for decisions that must not be taken on an old copy. `None` if it does not exist.
    pub async fn node(&self, name: &str) -> Result<Option<Node>, kube::Error> {
        self.limited(Api::<Node>::all(self.client.clone()).get_opt(name)).await
    }

    /// The pods on a Node.
    pub async fn pods(&self, node: &str) -> Result<Vec<Pod>, kube::Error> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(self.limited(api.list(&params)).await?.items)
    }

    /// Whether a DaemonSet exists.
    pub async fn daemon_set_exists(&self, namespace: &str, name: &str) -> Result<bool, kube::Error> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), namespace);
        Ok(self.limited(api.get_opt(name)).await?.is_some())
    }

    /// Names of the VolumeAttachments that attach a volume to a Node.
    pub async fn attached_volumes(&self, node: &str) -> Result<Vec<String>, kube::Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        // A cluster that does not serve the kind has none.
        let list = found(self.limited(api.list(&ListParams::default())).await)?;
        let attached = list.into_iter().flat_map(|list| list.items).filter(|attachment| {
            attachment.spec.node_name == node
                && attachment.status.as_ref().is_some_and(|status| status.attached)
        });
        Ok(attached.map(|attachment| attachment.name_any()).collect())
    }

    /// Changes a Node by merge patch; a resourceVersion in the patch guards it.
    pub async fn patch_node(&self, manager: &str, node: &str, patch: Value) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
        self.limited(api.patch(node, &params, &Patch::Merge(patch))).await.map(|_| ())
    }

    /// Removes a pod. One that does not exist is removed.
    pub async fn remove_pod(
        &self,
        namespace: &str,
        name: &str,
        how: PodRemoval,
    ) -> Result<Eviction, kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let options = DeleteParams { grace_period_seconds: how.grace_seconds, ..DeleteParams::default() };
        let sent = if how.force {
            self.limited(api.delete(name, &options)).await.map(|_| ())
        } else {
            let delete_options = how.grace_seconds.map(|_| options);
            let params = EvictParams { delete_options, ..EvictParams::default() };
            self.limited(api.evict(name, &params)).await.map(|_| ())
        };
        match sent {
            Err(error) if is_not_found(&error) => Ok(Eviction::Accepted),
            Err(kube::Error::Api(status)) if status.code == 429 => {
                Ok(Eviction::Blocked(status.message.clone()))
            }
            other => other.map(|()| Eviction::Accepted),
        }
    }

    /// Deletes a Node; with `uid` only if it is still that one. One that does not exist is deleted.
    pub async fn delete_node(&self, node: &str, uid: Option<&str>) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let only = uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let params = DeleteParams { preconditions: only, ..DeleteParams::default() };
        match found(self.limited(api.delete(node, &params)).await) {
            // Another Node has the name now.
            Err(kube::Error::Api(status)) if uid.is_some() && status.is_conflict() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn limited<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
        let limited = async {
            // Never closed.
            let _permit = self.calls.acquire().await;
            call.await
        };
        let timed_out = |_| Err(kube::Error::Service(CallTimedOut.into()));
        tokio::time::timeout(CALL_LIMIT, limited).await.unwrap_or_else(timed_out)
    }
}
