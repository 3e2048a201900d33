//! Why a cluster is not connected.

use std::time::Duration;

use drover_runtime::ObjectKey;

/// A cluster cannot be used now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Disconnected {
    pub why: Why,
    /// It is expected to reconnect soon, for example after a restart of the server, so its last known state is still
    /// valid. Its return is an event, and so is the end of the waiting time.
    pub expected: bool,
}

impl Disconnected {
    /// A cluster whose last known state is no longer valid.
    pub fn now(why: Why) -> Self {
        Self { why, expected: false }
    }
}

/// The cause, as text by its `Display`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Why {
    #[error("cluster {0} has no management cluster yet")]
    NoManagementCluster(ObjectKey),
    #[error("cluster {cluster} ({id}) is not connected")]
    NoTunnel { cluster: ObjectKey, id: String },
    #[error("Secret {0} with the cluster's kubeconfig was not found")]
    NoKubeconfig(ObjectKey),
    #[error("Secret {secret} does not have the label {label}={cluster}")]
    NoLabel { secret: ObjectKey, label: &'static str, cluster: String },
    #[error("the kubeconfig in Secret {secret} cannot be used: {cause}")]
    UnusableKubeconfig { secret: ObjectKey, cause: String },
    #[error("connecting to cluster {0}")]
    Connecting(ObjectKey),
    #[error("the API of cluster {0} rejected the credential (401 Unauthorized)")]
    Unauthorized(ObjectKey),
    #[error("the API of cluster {cluster} answered with status {code}")]
    BadAnswer { cluster: ObjectKey, code: u16 },
    #[error("the API of cluster {cluster} cannot be reached: {cause}")]
    Unreachable { cluster: ObjectKey, cause: String },
    #[error("the API of cluster {cluster} did not answer within {} s", limit.as_secs())]
    TimedOut { cluster: ObjectKey, limit: Duration },
    #[error("the Nodes of cluster {0} are being listed")]
    ListingNodes(ObjectKey),
}
