//! Putting it together: [`Options`] in, a running [`ApiServer`] out.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use prometheus_client::registry::Registry as Metrics;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::builtin::{self, ServiceAddresses};
use crate::clock::{Clock, SystemClock};
use crate::crd::{self, Converter};
use crate::http::{ApiBody, ApiService};
use crate::identity::{AllowAll, Authenticator, Authorizer, Impersonation, UserInfo};
use crate::lasting::lasting;
use crate::objects::Objects;
use crate::openapi::OpenApi;
use crate::patch::{FieldManager, Fields, StrategicMerge};
use crate::registry::{Registry, Resource};
use crate::status::Status;
use crate::storage::{MemoryStorage, Storage, Version};
use crate::table::Tables;

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
    /// Where Services get their cluster addresses.
    pub service_network: (Ipv4Addr, u8),
    /// Conversions between versions of custom resources, by the CRD's name.
    pub converters: HashMap<String, Arc<dyn Converter>>,
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
            service_network: (Ipv4Addr::new(10, 43, 0, 0), 16),
            converters: HashMap::new(),
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
        let fields = Arc::new(Fields::default());
        Self {
            authenticator: Arc::new(AllowAll),
            authorizer: Arc::new(AllowAll),
            impersonation: None,
            anonymous: true,
            fields: Some(fields.clone()),
            strategic: Some(fields),
            tables: Some(Arc::new(Tables)),
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
    /// The paths that it answers, as [patterns](crate::http::pattern). As for every other path, the caller is authenticated
    /// and authorized first.
    fn paths(&self) -> &'static [&'static str];

    /// The answer.
    fn handle<'a>(
        &'a self,
        request: RouteRequest<'a>,
    ) -> BoxFuture<'a, Result<http::Response<ApiBody>, Status>>;
}

/// A running server. Its own tasks end when it is dropped.
pub struct ApiServer {
    objects: Objects,
    service: ApiService,
    _definitions: crd::Controller,
    _tasks: JoinSet<()>,
}

impl ApiServer {
    /// Starts a server; it answers at once. Authentication goes into the options before (`Auth::install`),
    /// controllers are started over [`Self::objects`] afterwards.
    pub async fn start(options: Options) -> Result<Self, Status> {
        let Options { storage, clock, version, admission, service_network, converters, plugins } = options;
        let (storage, observer) = crd::observe(storage);
        let registry = Arc::new(Registry::new(builtin::resources().into_iter().chain([crd::resource()])));
        if let Some(fields) = &plugins.fields {
            fields.attach(&registry);
        }
        let objects = Objects::new(storage, registry, clock, plugins.fields.clone(), admission);
        objects.add_admission(Arc::new(ServiceAddresses::new(&objects, service_network)));
        let definitions = crd::Controller::start(observer, objects.clone(), converters).await;
        let mut tasks = JoinSet::new();
        let served = objects.clone();
        tasks.spawn(lasting("api-services", move || builtin::api_services::run(served.clone())));
        let mut plugins = plugins;
        plugins.routes.push(Arc::new(OpenApi::new(&version)));
        let service = ApiService::new(objects.clone(), plugins, version);
        Ok(Self { objects, service, _definitions: definitions, _tasks: tasks })
    }

    /// The HTTP service; clone it freely.
    pub fn service(&self) -> ApiService {
        self.service.clone()
    }

    /// Objects, without HTTP.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Counts requests from now on, and shows them and what the store holds in `registry`.
    pub fn register_metrics(&self, registry: &mut Metrics) {
        self.service.register_metrics(registry);
        crate::metrics::register_storage(self.objects.storage(), registry);
    }

    /// Makes `/readyz` fail and ends watches, so that clients go elsewhere while requests finish.
    pub fn shut_down(&self) {
        self.service.shut_down();
    }
}
