//! The watches of one connected cluster.

use std::time::Duration;

use drover_access_api::{ClusterHandle, Why};
use drover_runtime::{Cache, Caches, ObjectKey};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ClusterConnections;

/// Delay before failed watches are restarted.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// A live copy of the Nodes that ends when this is dropped.
pub(super) struct Watched {
    handle: ClusterHandle,
    nodes: Cache<Node>,
    cluster: ObjectKey,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Watched {
    pub(super) fn start(
        all: &ClusterConnections,
        cluster: &ObjectKey,
        client: Client,
        parent: &CancellationToken,
    ) -> Self {
        let stop = parent.child_token();
        let nodes = Caches::new(client.clone(), stop.clone()).trimmed(without_images);
        let (inner, key) = (std::sync::Arc::downgrade(&all.inner), cluster.clone());
        nodes.subscribe(move |change| {
            if let Some(inner) = inner.upgrade() {
                ClusterConnections { inner }.notify(&key, Some(change));
            }
        });
        tokio::spawn(follow(all.clone(), cluster.clone(), nodes.clone(), stop.clone()));
        let handle = ClusterHandle::new(client, nodes.clone());
        Self { handle, nodes, cluster: cluster.clone(), _guard: stop.clone().drop_guard(), stop }
    }

    /// False after the watch has ended, when the copy is no longer updated.
    pub(super) fn is_alive(&self) -> bool {
        !self.stop.is_cancelled()
    }

    /// The cluster, after its Nodes are listed; before that, every Node would appear to be deleted.
    pub(super) fn handle(&self) -> Result<ClusterHandle, Why> {
        if self.nodes.is_synced() {
            Ok(self.handle.clone())
        } else {
            Err(Why::ListingNodes(self.cluster.clone()))
        }
    }
}

/// A kubelet lists up to 50 images, which are most of a Node's size and are not used by any controller.
fn without_images(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

async fn follow(all: ClusterConnections, cluster: ObjectKey, nodes: Cache<Node>, stop: CancellationToken) {
    tokio::select! {
        () = nodes.synced() => all.notify(&cluster, None),
        () = stop.cancelled() => {}
    }
    stop.cancelled().await;
    // It ended by a panic; or on purpose, and then `refresh` changes nothing.
    tokio::select! {
        () = tokio::time::sleep(RESTART_PAUSE) => all.refresh(&cluster),
        () = all.inner.stop.cancelled() => {}
    }
}
