//! Assembles and runs the server: [`Options`] to [`ApiServer`].

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::builtin::{self, ServiceAddresses};
use crate::clock::{Clock, SystemClock};
use crate::crd::{self, Converter};
use crate::http::{ApiBody, ApiService};
use crate::identity::{AllowAll, Authenticator, Authorizer, Impersonation, UserInfo};
use crate::objects::Objects;
use crate::openapi::OpenApi;
use crate::patch::{FieldManager, Fields, StrategicMerge};
use crate::resources::{Resource, ResourceTable};
use crate::restart::restart_after_panic;
use crate::status::Status;
use crate::storage::{MemoryStorage, Storage, Version};
use crate::table::Tables;

/// The configuration of a server.
pub struct Options {
    /// The store.
    pub storage: Arc<dyn Storage>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// `gitVersion` in `/version`, for example `v1.36.3`.
    pub version: String,
    /// Admission hooks, in order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// The ranges of Services' cluster addresses.
    pub service_network: (Ipv4Addr, u8),
    /// Converters between versions of custom resources, by the CRD's name.
    pub converters: HashMap<String, Arc<dyn Converter>>,
    /// Implementations from other modules.
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

/// The replaceable parts of the server. A feature whose part is `None` is answered as not supported.
#[derive(Clone)]
pub struct Plugins {
    /// Authenticates callers.
    pub authenticator: Arc<dyn Authenticator>,
    /// Authorizes callers.
    pub authorizer: Arc<dyn Authorizer>,
    /// Impersonation.
    pub impersonation: Option<Arc<dyn Impersonation>>,
    /// Whether requests without credentials are `system:anonymous` (otherwise they get 401).
    pub anonymous: bool,
    /// managedFields and server-side apply.
    pub fields: Option<Arc<dyn FieldManager>>,
    /// Strategic merge patch.
    pub strategic: Option<Arc<dyn StrategicMerge>>,
    /// Tables.
    pub tables: Option<Arc<dyn TableConvertor>>,
    /// Further paths (`/openapi/…`, `/openid/…`), in order of precedence; other paths get 404.
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

/// Options of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// What each row contains.
    pub include_object: IncludeObject,
    /// Whether to include the column definitions (omitted after the first event of a watch).
    pub columns: bool,
    /// The current time, for ages.
    pub now: Timestamp,
}

/// Creates `meta.k8s.io/v1 Table`s.
pub trait TableConvertor: Send + Sync + 'static {
    /// Returns rows for objects that are in the version of `resource`. The caller sets `metadata` of the table (from
    /// the list, or the resourceVersion of the single object).
    fn table(
        &self,
        resource: &Resource,
        objects: &[Arc<Version>],
        options: TableOptions,
    ) -> Result<Value, Status>;
}

/// An authenticated and authorized request for a path outside of the resources.
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

/// Serves additional paths.
pub trait Route: Send + Sync + 'static {
    /// The paths, as [patterns](crate::http::pattern). As for all paths, the caller is authenticated and authorized
    /// first.
    fn paths(&self) -> &'static [&'static str];

    /// Returns the response.
    fn handle<'a>(
        &'a self,
        request: RouteRequest<'a>,
    ) -> BoxFuture<'a, Result<http::Response<ApiBody>, Status>>;
}

/// A running server. Its tasks stop when it is dropped.
pub struct ApiServer {
    objects: Objects,
    service: ApiService,
    _definitions: crd::Controller,
    _tasks: JoinSet<()>,
}

impl ApiServer {
    /// Starts a server, which answers at once. Set up authentication in the options before (`Auth::install`), and start
    /// controllers with [`Self::objects`] afterwards.
    pub async fn start(options: Options) -> Result<Self, Status> {
        let Options { storage, clock, version, admission, service_network, converters, plugins } = options;
        let (storage, observer) = crd::observe(storage);
        let resources =
            Arc::new(ResourceTable::new(builtin::resources().into_iter().chain([crd::resource()])));
        if let Some(fields) = &plugins.fields {
            fields.attach(&resources);
        }
        let objects = Objects::new(storage, resources, clock, plugins.fields.clone(), admission);
        objects.add_admission(Arc::new(ServiceAddresses::new(&objects, service_network)));
        let definitions = crd::Controller::start(observer, objects.clone(), converters).await;
        let mut tasks = JoinSet::new();
        let served = objects.clone();
        tasks.spawn(restart_after_panic("api-services", move || builtin::api_services::run(served.clone())));
        let mut plugins = plugins;
        plugins.routes.push(Arc::new(OpenApi::new(&version)));
        let service = ApiService::new(objects.clone(), plugins, version);
        Ok(Self { objects, service, _definitions: definitions, _tasks: tasks })
    }

    /// The HTTP service; cheap to clone.
    pub fn service(&self) -> ApiService {
        self.service.clone()
    }

    /// Access to objects without HTTP.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Starts to count requests, and registers metrics of requests and of the store in `registry`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.service.register_metrics(registry);
        crate::metrics::register_storage(self.objects.storage(), registry);
    }

    /// Makes `/readyz` fail and ends watches, so that clients move to another server while requests finish.
    pub fn shut_down(&self) {
        self.service.shut_down();
    }
}
