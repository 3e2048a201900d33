//! The CA of the API of the cluster that this node belongs to: [`crate::cluster_agent`] reads it from the admin
//! kubeconfig, and [`crate::remote`] reports it in the plan secret. The management plane accepts a tunnel only if a
//! control plane machine reported its CA.

use std::sync::Arc;

use tokio::sync::watch;

/// The value, shared by the module that reads it and the module that reports it.
#[derive(Clone)]
pub struct ClusterCa(Arc<watch::Sender<Option<Arc<[u8]>>>>);

impl Default for ClusterCa {
    fn default() -> Self {
        Self(Arc::new(watch::channel(None).0))
    }
}

impl ClusterCa {
    /// Sets the PEM.
    pub fn set(&self, pem: &[u8]) {
        self.0.send_if_modified(|known| {
            let new = known.as_deref() != Some(pem);
            if new {
                *known = Some(pem.into());
            }
            new
        });
    }

    /// Subscribes to changes.
    pub(crate) fn subscribe(&self) -> Subscription {
        Subscription(self.0.subscribe())
    }
}

/// A subscription to the CA.
pub(crate) struct Subscription(watch::Receiver<Option<Arc<[u8]>>>);

impl Subscription {
    /// The PEM, if it is known.
    pub(crate) fn get(&self) -> Option<Arc<[u8]>> {
        self.0.borrow().clone()
    }

    /// Waits until it changes.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The sender is gone, so it will not change.
            std::future::pending().await
        }
    }
}
