//! How controllers use the clusters that are managed.
//!
//! * [`ClusterAccess`]: all clusters, by the key of their CAPI Cluster. `access` implements it, tests do with a client.
//! * [`handle`]: one connected cluster: its Nodes from a live copy, everything else by calls that are limited in time.
//! * [`disconnected`]: why a cluster is not connected, as a value.
//! * [`ids`]: the management id (`c-m-…`) of a cluster and the key of its Cluster: the only mapping between the two.
//!
//! This crate is apart from `access`, so that the controllers depend neither on tunnels and TLS nor on the API server.
//! Start reading at [`ClusterAccess`].

pub mod disconnected;
pub mod handle;
pub mod ids;

use std::sync::Arc;

use drover_runtime::{Change, ObjectKey};
use k8s_openapi::api::core::v1::Node;

pub use disconnected::{Disconnected, Why};
pub use handle::{ClusterHandle, Eviction, PodRemoval};
pub use ids::ManagementIds;

/// All clusters that are managed.
pub trait ClusterAccess: Send + Sync + 'static {
    /// The cluster of a CAPI Cluster, if it is connected now. Not being connected is data: see [`Disconnected`].
    fn cluster(&self, cluster: &ObjectKey) -> Result<ClusterHandle, Disconnected>;

    /// Whether the owner of the CAPI Cluster is being deleted. The connection then ends before the Machines do, which is
    /// not a failure.
    fn is_being_deleted(&self, _cluster: &ObjectKey) -> bool {
        false
    }

    /// Calls `listener` for every change of a connection or of a Node. It must not block.
    fn on_change(&self, listener: Listener);
}

/// Receives every [`ClusterChange`].
pub type Listener = Box<dyn Fn(&ClusterChange<'_>) + Send + Sync>;

/// A change in one cluster.
pub struct ClusterChange<'a> {
    /// Key of the CAPI Cluster.
    pub cluster: &'a ObjectKey,
    /// The Node that changed; `None` when the connection did.
    pub node: Option<&'a Change<'a, Node>>,
}

impl<'a> ClusterChange<'a> {
    /// The Node before and after the change, as far as it existed.
    pub fn nodes(&self) -> impl Iterator<Item = &'a Arc<Node>> + use<'a> {
        self.node.into_iter().flat_map(|change| change.old.into_iter().chain(change.new))
    }
}

/// `spec.providerID` of a Node, if it is set.
pub fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}
