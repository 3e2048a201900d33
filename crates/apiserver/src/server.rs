//! Putting it together: [`Options`] in, a running [`ApiServer`] out.

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;

use crate::admission::Admission;
use crate::builtin;
use crate::clock::{Clock, SystemClock};
use crate::http::{ApiBody, ApiService};
use crate::identity::{AllowAll, Authenticator, Authorizer, Impersonation, UserInfo};
use crate::objects::Objects;
use crate::patch::{FieldManager, StrategicMerge};
use crate::registry::{Registry, Resource};
use crate::status::Status;
use crate::storage::{MemoryStorage, Storage, Version};

/// How to start a server.
pub struct Options {
    /// Where objects live.
    pub storage: Arc<dyn Storage>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// `gitVersion` that `/version` shows, like `v1.36.3`.
    pub version: String,
    /// Hooks into writes, in this order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// The parts that other modules fill.
    pub plugins: Plugins,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            storage: Arc::new(MemoryStorage::new()),
            clock: Arc::new(SystemClock),
            version: "v1.36.3".into(),
            admission: Vec::new(),
            plugins: Plugins::default(),
        }
    }
}

/// The replaceable parts of the server. What is `None` is answered as not supported.
#[derive(Clone)]
pub struct Plugins {
    /// Finds the caller.
    pub authenticator: Arc<dyn Authenticator>,
    /// Judges the caller.
    pub authorizer: Arc<dyn Authorizer>,
    /// Acts as someone else.
    pub impersonation: Option<Arc<dyn Impersonation>>,
    /// Whether requests without credentials go on as `system:anonymous` (else 401).
    pub anonymous: bool,
    /// managedFields and server-side apply.
    pub fields: Option<Arc<dyn FieldManager>>,
    /// Strategic merge patch.
    pub strategic: Option<Arc<dyn StrategicMerge>>,
    /// Tables.
    pub tables: Option<Arc<dyn TableConvertor>>,
    /// Further paths (`/openapi/…`, `/openid/…`), asked in order before a path is 404.
    pub routes: Vec<Arc<dyn Route>>,
}

impl Default for Plugins {
    fn default() -> Self {
        Self {
            authenticator: Arc::new(AllowAll),
            authorizer: Arc::new(AllowAll),
            impersonation: None,
            anonymous: true,
            fields: None,
            strategic: None,
            tables: None,
            routes: Vec::new(),
        }
    }
}

/// `?includeObject=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// PartialObjectMetadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// What a table is made for.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// What each row carries.
    pub include_object: IncludeObject,
    /// Whether to repeat the column definitions (not after the first event of a watch).
    pub columns: bool,
    /// For ages.
    pub now: Timestamp,
}

/// Makes `meta.k8s.io/v1 Table`s.
pub trait TableConvertor: Send + Sync + 'static {
    /// Rows for objects that are already in the version of `resource`. The caller sets `metadata` of the
    /// table (from the list, or the resourceVersion of the single object).
    fn table(
        &self,
        resource: &Resource,
        objects: &[Arc<Version>],
        options: TableOptions,
    ) -> Result<Value, Status>;
}

/// A request for a path outside of the resources, already authenticated and authorized.
pub struct RouteRequest<'a> {
    /// Method, URI, headers, extensions.
    pub parts: &'a http::request::Parts,
    /// The body, at most 3 MiB.
    pub body: bytes::Bytes,
    /// The caller.
    pub user: &'a UserInfo,
    /// The store.
    pub objects: &'a Objects,
}

/// Serves further paths.
pub trait Route: Send + Sync + 'static {
    /// Whether, and for whom, this route answers the path.
    fn matches(&self, path: &str) -> Option<RouteAccess>;

    /// The answer.
    fn handle<'a>(
        &'a self,
        request: RouteRequest<'a>,
    ) -> BoxFuture<'a, Result<http::Response<ApiBody>, Status>>;
}

/// Whether a [`Route`] is for everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteAccess {
    /// No authentication, no authorization.
    Public,
    /// As any other path.
    Authorized,
}

/// A running server.
pub struct ApiServer {
    objects: Objects,
    service: ApiService,
}

impl ApiServer {
    /// Starts a server; it answers at once.
    pub async fn start(options: Options) -> Result<Self, Status> {
        let registry = Arc::new(Registry::new(builtin::resources()));
        let Options { storage, clock, version, admission, plugins } = options;
        let objects = Objects::new(storage, registry, clock, plugins.fields.clone(), admission);
        let service = ApiService::new(objects.clone(), plugins, version);
        Ok(Self { objects, service })
    }

    /// The HTTP service; clone it freely.
    pub fn service(&self) -> ApiService {
        self.service.clone()
    }

    /// Objects, without HTTP.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Makes `/readyz` fail and ends watches, so that clients go elsewhere while requests finish.
    pub fn shut_down(&self) {
        self.service.shut_down();
    }
}
