//! Queries about the machines of a cluster. This crate does not know how clusters are provisioned; the server
//! implements them.

use drover_apiserver::identity::UserInfo;
use drover_runtime::ObjectKey;
use drover_runtime::events::Note;

use crate::authority::Authority;

/// An authenticated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Namespace and name of its Machine object.
    pub key: ObjectKey,
    /// The id of the management Cluster to which it belongs.
    pub cluster: String,
    /// Whether it has the control-plane or the etcd role, according to its Machine object.
    pub carries_tunnel: bool,
}

/// The machines of all provisioned clusters.
pub trait Machines: Send + Sync + 'static {
    /// False until the caches are complete; before that, rejections are temporary.
    fn is_ready(&self) -> bool;

    /// The machine whose own credential `user` is.
    fn machine_of(&self, user: &UserInfo) -> Option<Machine>;

    /// Whether this machine still exists.
    fn exists(&self, machine: &ObjectKey) -> bool;

    /// The CAs of the cluster's API that its control-plane machines reported.
    fn authorities(&self, cluster: &str) -> Vec<Authority>;

    /// Whether a registration token alone may open the tunnel of a provisioned cluster.
    fn accepts_registration_tokens(&self) -> bool;

    /// Records an event of a cluster.
    fn record_event(&self, cluster: &str, note: &Note);
}
