//! Starts a complete server in one call, with every part of this crate.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::admission::Admission;
use crate::auth::pki::Pki;
use crate::auth::{Auth, AuthError, AuthOptions};
use crate::clock::{Clock, SystemClock};
use crate::controllers::{ControllerOptions, Controllers};
use crate::http::ApiService;
use crate::identity::{Authenticator, UserInfo};
use crate::server::{ApiServer, Options};
use crate::status::Status;
use crate::storage::{MemoryStorage, Storage};

/// The configuration of a complete server.
pub struct EmbeddedOptions {
    /// The store.
    pub storage: Arc<dyn Storage>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// `gitVersion` in `/version`.
    pub version: String,
    /// Authority for client certificates, key of service-account tokens.
    pub pki: Arc<Pki>,
    /// Further admission hooks.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Further authenticators, tried after the built-in ones.
    pub authenticators: Vec<Arc<dyn Authenticator>>,
    /// Accept requests without credentials as `system:anonymous`; otherwise they get 401.
    pub anonymous: bool,
    /// The URL at which clients reach the server.
    pub server_url: String,
    /// Which controllers run.
    pub controllers: ControllerOptions,
}

impl EmbeddedOptions {
    /// A server that keeps everything in memory and authenticates only with `pki`: for tests and simulated clusters.
    pub fn in_memory(pki: Arc<Pki>) -> Self {
        Self {
            storage: Arc::new(MemoryStorage::new()),
            clock: Arc::new(SystemClock),
            version: "v1.36.3".into(),
            pki,
            admission: vec![],
            authenticators: vec![],
            anonymous: false,
            server_url: "https://127.0.0.1:8443".into(),
            controllers: ControllerOptions::default(),
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// Failed to set up authentication.
    #[error("failed to set up authentication")]
    Auth(#[from] AuthError),
    /// Failed to create required objects in the store.
    #[error("failed to prepare the store: {0}")]
    Store(String),
}

impl From<Status> for EmbeddedError {
    fn from(status: Status) -> Self {
        Self::Store(status.message)
    }
}

/// A running server with authentication, RBAC, custom resources, server-side apply, tables and controllers. Dropping it
/// stops the controllers.
pub struct Embedded {
    server: ApiServer,
    auth: Auth,
    _controllers: Controllers,
}

impl Embedded {
    /// Starts everything. The server answers at once, and serves all stored custom resources.
    pub async fn start(options: EmbeddedOptions) -> Result<Self, EmbeddedError> {
        let auth_options = AuthOptions {
            authenticators: options.authenticators,
            anonymous: options.anonymous,
            server_url: options.server_url,
            ..AuthOptions::new(options.pki)
        };
        let auth = Auth::new(auth_options, options.storage.clone(), options.clock.clone())?;
        let mut server = Options {
            storage: options.storage,
            clock: options.clock,
            version: options.version,
            admission: options.admission,
            ..Options::default()
        };
        auth.install(&mut server);
        let server = ApiServer::start(server).await?;
        auth.register(server.objects());
        let controllers = Controllers::start(server.objects(), options.controllers).await?;
        Ok(Self { server, auth, _controllers: controllers })
    }

    /// The HTTP service; cheap to clone.
    pub fn service(&self) -> ApiService {
        self.server.service()
    }

    /// Authenticates a request that is not for the API itself as the API would.
    pub async fn authenticate(&self, request: &http::request::Parts) -> Result<UserInfo, Status> {
        let found = self.auth.authenticator.authenticate(request).await?;
        found.ok_or_else(Status::unauthorized)
    }

    /// The server.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Starts to count requests, and registers metrics of requests and of the store in `registry`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.server.register_metrics(registry);
    }

    /// Makes `/readyz` fail and ends watches.
    pub fn shut_down(&self) {
        self.server.shut_down();
    }
}
