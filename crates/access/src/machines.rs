//! What this crate asks about the machines behind a cluster. It does not know how clusters are provisioned; the server
//! tells it.

use drover_apiserver::identity::UserInfo;
use drover_runtime::ObjectKey;
use drover_runtime::events::Note;

use crate::authority::Authority;

/// A machine that proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Namespace and name of its Machine object.
    pub key: ObjectKey,
    /// The management Cluster (its id) that it belongs to.
    pub cluster: String,
    /// It has the control-plane or the etcd role, by its Machine object.
    pub carries_tunnel: bool,
}

/// The machines of all provisioned clusters.
pub trait Machines: Send + Sync + 'static {
    /// False until everything below is known: before that nothing is refused for good.
    fn is_ready(&self) -> bool;

    /// The machine whose own credential `user` is.
    fn machine_of(&self, user: &UserInfo) -> Option<Machine>;

    /// Whether there is still such a machine.
    fn exists(&self, machine: &ObjectKey) -> bool;

    /// The authorities of the cluster's API that its control-plane machines reported.
    fn authorities(&self, cluster: &str) -> Vec<Authority>;

    /// Whether a registration token alone may open the tunnel of a provisioned cluster.
    fn accepts_registration_tokens(&self) -> bool;

    /// Tells people something about a cluster.
    fn tell(&self, cluster: &str, note: &Note);
}
