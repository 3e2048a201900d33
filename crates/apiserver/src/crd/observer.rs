//! A wrapper of the store: a writer of a CRD waits until the served resources are updated.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot};

use super::{GROUP, PLURAL};
use crate::storage::{Change, Index, Storage, StorageError, Version, Write};

/// Wraps `storage` so that CRD writes are observed; pass the [`Observer`] to [`super::Controller::start`].
pub fn observe(storage: Arc<dyn Storage>) -> (Arc<dyn Storage>, Observer) {
    let (send, receive) = mpsc::unbounded_channel();
    let terminating = Arc::new(RwLock::new(HashSet::new()));
    let observed =
        Observed { inner: storage.clone(), notify: send.clone(), terminating: terminating.clone() };
    (Arc::new(observed), Observer { storage, notify: send, receive, terminating })
}

/// The controller's end of an observed store.
pub struct Observer {
    /// The wrapped store, for the controller's own writes.
    pub(super) storage: Arc<dyn Storage>,
    pub(super) notify: mpsc::UnboundedSender<Notice>,
    pub(super) receive: mpsc::UnboundedReceiver<Notice>,
    /// Topics of CRDs that are being deleted: removals of their objects are reported.
    pub(super) terminating: Arc<RwLock<HashSet<String>>>,
}

/// A notice to the controller.
pub(super) enum Notice {
    /// A CRD changed; answered after the served resources are updated.
    Changed(oneshot::Sender<()>),
    /// An instance of a terminating CRD was removed.
    InstanceGone,
}

struct Observed {
    inner: Arc<dyn Storage>,
    notify: mpsc::UnboundedSender<Notice>,
    terminating: Arc<RwLock<HashSet<String>>>,
}

impl Storage for Observed {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>> {
        let is_crd = write.key.group() == GROUP && write.key.resource() == PLURAL;
        if !is_crd {
            let removal = matches!(write.change, Change::Delete { .. });
            if !removal || !self.terminating.read().contains(write.key.topic()) {
                return self.inner.write(write);
            }
            return Box::pin(async move {
                let version = self.inner.write(write).await?;
                let _ = self.notify.send(Notice::InstanceGone);
                Ok(version)
            });
        }
        Box::pin(async move {
            let version = self.inner.write(write).await?;
            let (done, wait) = oneshot::channel();
            if self.notify.send(Notice::Changed(done)).is_ok() {
                // A stopped controller (shutdown) drops its end.
                let _ = wait.await;
            }
            Ok(version)
        })
    }

    fn index(&self) -> &Index {
        self.inner.index()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn health(&self) -> Result<(), StorageError> {
        self.inner.health()
    }

    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        self.inner.compact(revision)
    }
}
