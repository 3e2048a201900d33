//! The only way to a downstream cluster: Nodes, read and changed through its tunnel.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
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

/// Downstream clusters by management id (`c-m-…`). Implementations bound every call in time.
pub trait Downstream: Send + Sync + 'static {
    /// Nodes that carry all of a label selector (`key=value,…`).
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

    /// Calls `listener` with the id of a cluster whose connection or Nodes changed. It does not block.
    fn on_change(&self, listener: Box<dyn Fn(&str) + Send + Sync>);
}
