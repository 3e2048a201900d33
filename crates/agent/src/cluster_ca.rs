//! The authority behind the API of the cluster that this node serves: [`crate::cluster_agent`] learns it from the admin
//! kubeconfig, and [`crate::remote`] reports it in the plan secret. The management plane accepts a tunnel only for an
//! authority that a control-plane machine reported.

use std::sync::Arc;

use tokio::sync::watch;

/// The value, shared by those who learn and those who report it.
#[derive(Clone)]
pub struct ClusterCa(Arc<watch::Sender<Option<Arc<[u8]>>>>);

impl Default for ClusterCa {
    fn default() -> Self {
        Self(Arc::new(watch::channel(None).0))
    }
}

impl ClusterCa {
    /// It is this PEM now.
    pub fn learn(&self, pem: &[u8]) {
        self.0.send_if_modified(|known| {
            let new = known.as_deref() != Some(pem);
            if new {
                *known = Some(pem.into());
            }
            new
        });
    }

    /// From now on.
    pub(crate) fn follow(&self) -> Followed {
        Followed(self.0.subscribe())
    }
}

/// What a reporter sees of it.
pub(crate) struct Followed(watch::Receiver<Option<Arc<[u8]>>>);

impl Followed {
    /// The PEM, if it was learnt.
    pub(crate) fn known(&self) -> Option<Arc<[u8]>> {
        self.0.borrow().clone()
    }

    /// Waits until it is another.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody can learn it any more.
            std::future::pending().await
        }
    }
}
