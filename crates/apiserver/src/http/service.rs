//! The HTTP service: the filters of every request, outermost first, and the state that handlers share.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ACCEPT_ENCODING, HeaderValue, USER_AGENT};
use http::request::Parts;
use http::{Request, Response};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::compress::compress;
use super::fairness::Fairness;
use super::heavy::{HEAVY_FROM, Heavy, LONG_QUERY};
use super::incoming::{Incoming, LargeBodies};
use super::info::RequestInfo;
use super::query::{Query, go_duration};
use super::{ApiBody, handlers, heavy, paths, pattern};
use crate::admission::Warnings;
use crate::identity::{OnAuthenticated, UserInfo};
use crate::metrics::Requests;
use crate::objects::Objects;
use crate::server::{Plugins, Route};
use crate::status::{GroupName, Status};

/// Timeout of requests other than watches, unless `?timeout=` is shorter.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Size limit of all warnings in a response; beyond it, each warning is cut.
const WARNING_BUDGET: usize = 4 << 10;
const WARNING_CUT: usize = 256;

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
    fairness: Fairness,
    in_flight: LargeBodies,
    pub(super) heavy: Heavy,
    /// Set when the metrics are registered.
    requests: OnceLock<Requests>,
}

/// A request in the filters.
pub(super) struct Call<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) parts: &'a Parts,
    pub(super) body: Bytes,
    pub(super) info: &'a RequestInfo,
    pub(super) query: &'a Query,
    pub(super) user: UserInfo,
    pub(super) warnings: &'a Warnings,
    /// Whether it already runs as a heavy request; waiting for a second permit could deadlock.
    pub(super) heavy: bool,
}

impl Call<'_> {
    /// Whether the response should be readable by people.
    pub(super) fn pretty(&self) -> bool {
        match self.query.get("pretty") {
            Some(value) => !matches!(value, "false" | "0"),
            None => {
                let agent = self.parts.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
                let people = ["curl", "Wget", "Mozilla/"];
                agent.is_some_and(|agent| people.iter().any(|name| agent.starts_with(name)))
            }
        }
    }
}

impl ApiService {
    pub(crate) fn new(objects: Objects, plugins: Plugins, version: String) -> Self {
        let stopping = watch::Sender::new(false);
        let shared = Shared {
            objects,
            plugins,
            version,
            stopping,
            fairness: Fairness::default(),
            in_flight: LargeBodies::default(),
            heavy: Heavy::default(),
            requests: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts to count requests.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        // A second call has no effect.
        let _ = self.shared.requests.set(Requests::new(registry));
    }

    /// Authenticates and authorizes a request that another handler answers.
    pub async fn admit(&self, parts: &Parts) -> Result<UserInfo, Status> {
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
        let user = authenticate(&self.shared, parts).await?;
        authorize(&self.shared, &info, &query, &user).await?;
        Ok(user)
    }

    pub(crate) fn shut_down(&self) {
        self.shared.stopping.send_replace(true);
    }

    /// All served paths, as [patterns](pattern); other paths get 404.
    pub fn paths(&self) -> Vec<&'static str> {
        let resources = ["/api/{version}/...", "/apis/{group}/{version}/..."];
        let plugged = self.shared.plugins.routes.iter().flat_map(|route| route.paths());
        resources.iter().chain(paths::PATHS.iter().map(|(path, _)| path)).chain(plugged).copied().collect()
    }

    /// Handles a request whose body is not yet read.
    async fn handle(self, request: Request<Incoming>) -> Response<ApiBody> {
        let (parts, mut body) = request.into_parts();
        let warnings = Warnings::default();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
        let counted =
            self.shared.requests.get().map(|requests| {
                (requests.clone(), self.shared.labels(&parts, &info, &query), Instant::now())
            });
        let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
        let encodings = parts.headers.get(ACCEPT_ENCODING).cloned();
        let work = AssertUnwindSafe(self.filters(parts, query, info, &mut body, &warnings)).catch_unwind();
        let failure = match work.await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => Err(status),
            Err(_) => {
                tracing::error!(%method, path, "a handler panicked");
                Err(Status::internal("this request caused apiserver to panic. Look in the logs for details"))
            }
        };
        let mut response = failure.unwrap_or_else(|status| body.refuse(&status));
        add_headers(&mut response, &warnings);
        let response = compress(encodings.as_ref(), response);
        match counted {
            Some((requests, labels, began)) => requests.answered(labels, began, response),
            None => response,
        }
    }

    /// Request info → deadline → authentication → authorization → body → handler. Nothing of the body is read before
    /// the request is authorized.
    async fn filters(
        &self,
        parts: Parts,
        query: Query,
        info: RequestInfo,
        body: &mut Incoming,
        warnings: &Warnings,
    ) -> Result<Response<ApiBody>, Status> {
        let shared = &self.shared;
        let timeout = match query.get("timeout") {
            None | Some("") => REQUEST_TIMEOUT,
            Some(text) => match go_duration(text) {
                None => {
                    return Err(Status::bad_request(format!(
                        "invalid timeout specified in the request URL - time: invalid duration {text:?}"
                    )));
                }
                Some(Duration::ZERO) => REQUEST_TIMEOUT,
                Some(asked) => asked.min(REQUEST_TIMEOUT),
            },
        };
        let user = authenticate(shared, &parts).await?;
        authorize(shared, &info, &query, &user).await?;
        // Deleting a large collection may take long; a watch has its own deadline.
        let unhurried = matches!(info.verb, "watch" | "deletecollection");
        let turn = shared.fairness.enter(&info, &user)?;
        let body = body.read(&parts, &shared.in_flight).await?;
        let heavy = body.bytes.len() > HEAVY_FROM
            || parts.uri.query().is_some_and(|query| query.len() > LONG_QUERY)
            || (info.verb == "patch" && heavy::may_amplify(&body.bytes))
            || self.changes_large_object(&info);
        let shared = shared.clone();
        let warnings = warnings.clone();
        let work = async move {
            // Held until the work is done, even if the client no longer waits for it.
            let (_turn, _body) = (turn, &body);
            let call = Call {
                shared: &shared,
                parts: &parts,
                body: body.bytes.clone(),
                info: &info,
                query: &query,
                user,
                warnings: &warnings,
                heavy,
            };
            answer(call).await
        };
        let work = async { if heavy { self.shared.heavy.run(work).await } else { work.await } };
        if unhurried {
            return work.await;
        }
        let late = |_| Status::timeout("request did not complete within the allotted timeout", 1);
        tokio::time::timeout(timeout, work).await.map_err(late)?
    }

    /// Whether a write concerns an object that takes long to decode, compare and encode.
    fn changes_large_object(&self, info: &RequestInfo) -> bool {
        if !info.is_resource || !matches!(info.verb, "update" | "patch" | "delete") {
            return false;
        }
        let objects = &self.shared.objects;
        let resource = objects.resources().resource(&info.group, &info.version, &info.resource);
        let stored = resource.and_then(|resource| {
            let namespace = if resource.def.namespaced { &*info.namespace } else { "" };
            objects.get(&resource, namespace, &info.name).ok()
        });
        stored.is_some_and(|version| version.len() > HEAVY_FROM)
    }
}

fn route<'a>(shared: &'a Shared, info: &RequestInfo) -> Option<&'a Arc<dyn Route>> {
    let answers =
        |route: &&Arc<dyn Route>| route.paths().iter().any(|known| pattern::matches(known, &info.path));
    shared.plugins.routes.iter().find(answers)
}

/// Answers an authorized request.
async fn answer(call: Call<'_>) -> Result<Response<ApiBody>, Status> {
    if call.info.is_resource {
        return handlers::resource(call).await;
    }
    match route(call.shared, call.info) {
        Some(route) => {
            let request = crate::server::RouteRequest {
                parts: call.parts,
                body: call.body,
                user: &call.user,
                objects: &call.shared.objects,
            };
            route.handle(request).await
        }
        None => paths::answer(&call),
    }
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ApiBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<ApiBody>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        let request = request.map(Incoming::new);
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

async fn authenticate(shared: &Shared, parts: &Parts) -> Result<UserInfo, Status> {
    let plugins = &shared.plugins;
    let user = match parts.extensions.get::<UserInfo>() {
        Some(user) => user.clone(),
        None => match plugins.authenticator.authenticate(parts).await? {
            Some(user) => {
                OnAuthenticated::notify(&parts.extensions);
                user
            }
            None if plugins.anonymous => UserInfo::anonymous(),
            None => return Err(Status::unauthorized()),
        },
    };
    match &plugins.impersonation {
        None => Ok(user),
        Some(impersonation) => impersonation.impersonate(user, parts, &*plugins.authorizer).await,
    }
}

async fn authorize(
    shared: &Shared,
    info: &RequestInfo,
    query: &Query,
    user: &UserInfo,
) -> Result<(), Status> {
    let attributes = info.attributes(user, query);
    let decision = shared.plugins.authorizer.authorize(&attributes).await?;
    if decision.allowed {
        return Ok(());
    }
    let resource = GroupName { group: &info.group, name: &info.resource };
    Err(Status::forbidden(resource, &info.name, &attributes.denial(&decision.reason)))
}

fn add_headers(response: &mut Response<ApiBody>, warnings: &Warnings) {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        headers.insert("Audit-Id", id);
    }
    let texts = warnings.take();
    let total: usize = texts.iter().map(String::len).sum();
    for text in texts {
        let cut = if total > WARNING_BUDGET { WARNING_CUT } else { usize::MAX };
        let clean: String = text.chars().filter(|c| !c.is_control()).take(cut).collect();
        let quoted = clean.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            headers.append("Warning", value);
        }
    }
}
