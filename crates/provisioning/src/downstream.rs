//! The only way to a downstream cluster: its Nodes and what runs on them, read and changed through its tunnel.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::Value;

/// Why a cluster did not answer.
#[derive(Debug, thiserror::Error)]
pub enum DownstreamError {
    /// There is no tunnel at the moment.
    #[error("cluster {0} is not connected")]
    Disconnected(String),
    /// It answered with an error, or not in time.
    #[error("cluster {cluster} failed to {operation}: {cause}")]
    Failed { cluster: String, operation: String, cause: String },
}

/// How a pod is made to leave.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// Asks disruption budgets first; without, the pod is deleted whatever they say.
    pub evict: bool,
    /// Seconds it gets to end; its own if not given.
    pub grace_seconds: Option<u32>,
}

/// Downstream clusters by management id (`c-m-…`). Implementations bound every call in time.
pub trait Downstream: Send + Sync + 'static {
    /// Nodes that carry all of a label selector (`key`, `key=value`, with commas between).
    fn nodes<'a>(
        &'a self,
        cluster: &'a str,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Node>, DownstreamError>>;

    /// One Node; none if it is gone.
    fn node<'a>(
        &'a self,
        cluster: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Node>, DownstreamError>>;

    /// Changes a Node by merge patch; a resourceVersion in the patch guards it.
    fn patch_node<'a>(
        &'a self,
        cluster: &'a str,
        name: &'a str,
        patch: Value,
    ) -> BoxFuture<'a, Result<(), DownstreamError>>;

    /// Deletes a Node, provided that it is still the one with this uid; one that is gone is deleted.
    fn delete_node<'a>(
        &'a self,
        cluster: &'a str,
        name: &'a str,
        uid: &'a str,
    ) -> BoxFuture<'a, Result<(), DownstreamError>>;

    /// The pods on a Node.
    fn pods<'a>(
        &'a self,
        cluster: &'a str,
        node: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Pod>, DownstreamError>>;

    /// Makes a pod leave; gives the reason if a disruption budget holds it. One that is gone has left.
    fn remove_pod<'a>(
        &'a self,
        cluster: &'a str,
        namespace: &'a str,
        name: &'a str,
        how: Removal,
    ) -> BoxFuture<'a, Result<Option<String>, DownstreamError>>;

    /// Calls `listener` with the id of a cluster whose connection or Nodes changed. It does not block.
    fn on_change(&self, listener: Box<dyn Fn(&str) + Send + Sync>);
}
