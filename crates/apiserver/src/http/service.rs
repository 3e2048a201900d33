//! The service: the outermost layer, and the state that all handlers share.

use std::sync::Arc;

use tokio::sync::watch;

use crate::objects::Objects;
use crate::server::Plugins;

/// The HTTP service of a server. Cheap to clone.
#[derive(Clone)]
pub struct ApiService {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) objects: Objects,
    pub(super) plugins: Plugins,
    pub(super) version: String,
    pub(super) stopping: watch::Sender<bool>,
}

impl ApiService {
    pub(crate) fn new(objects: Objects, plugins: Plugins, version: String) -> Self {
        let stopping = watch::Sender::new(false);
        Self { shared: Arc::new(Shared { objects, plugins, version, stopping }) }
    }

    pub(crate) fn shut_down(&self) {
        self.shared.stopping.send_replace(true);
    }
}
