//! A whole server in one call: every part of this crate, plugged together.

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

/// What a whole server needs to know.
pub struct EmbeddedOptions {
    /// Where objects live.
    pub storage: Arc<dyn Storage>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// `gitVersion` that `/version` shows.
    pub version: String,
    /// Authority for client certificates, key of service-account tokens.
    pub pki: Arc<Pki>,
    /// Further hooks into writes.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Further credentials, asked after the built-in ones.
    pub authenticators: Vec<Arc<dyn Authenticator>>,
    /// Let requests without credentials in as `system:anonymous`; else they are 401.
    pub anonymous: bool,
    /// Where clients reach the server.
    pub server_url: String,
    /// Which controllers run.
    pub controllers: ControllerOptions,
}

impl EmbeddedOptions {
    /// A server that keeps everything in memory and lets nobody in but by `pki`: for tests and simulated clusters.
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

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// Authentication cannot be set up.
    #[error("authentication cannot be set up")]
    Auth(#[from] AuthError),
    /// The store does not accept what must exist.
    #[error("the store cannot be prepared: {0}")]
    Store(String),
}

impl From<Status> for EmbeddedError {
    fn from(status: Status) -> Self {
        Self::Store(status.message)
    }
}

/// A running server with authentication, RBAC, custom resources, server-side apply, tables and controllers.
/// Dropping it ends the controllers.
pub struct Embedded {
    server: ApiServer,
    auth: Auth,
    _controllers: Controllers,
}

impl Embedded {
    /// Starts everything; it answers at once, with all stored custom resources served.
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

    /// The HTTP service; clone it freely.
    pub fn service(&self) -> ApiService {
        self.server.service()
    }

    /// The caller of a request that is not for the API itself, found as the API would.
    pub async fn authenticate(&self, request: &http::request::Parts) -> Result<UserInfo, Status> {
        let found = self.auth.authenticator.authenticate(request).await?;
        found.ok_or_else(Status::unauthorized)
    }

    /// The server.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Counts requests from now on, and shows them and what the store holds in `registry`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.server.register_metrics(registry);
    }

    /// Makes `/readyz` fail and ends watches.
    pub fn shut_down(&self) {
        self.server.shut_down();
    }
}
