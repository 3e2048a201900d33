//! The service: the filters around every request, outermost first, and the state that handlers share.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, USER_AGENT, VARY};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::watch;

use super::fairness::Fairness;
use super::info::RequestInfo;
use super::query::{Query, go_duration};
use super::{ApiBody, handlers, paths, respond};
use crate::admission::Warnings;
use crate::identity::{OnRecognised, UserInfo};
use crate::objects::Objects;
use crate::server::{Plugins, RouteAccess};
use crate::status::{GroupName, Status};

/// Bodies above this are 413.
const BODY_LIMIT: usize = 3 << 20;
/// Requests that are no watch end after this, unless `?timeout=` says less.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Answers above this are compressed for those who ask.
const GZIP_FROM: usize = 128 << 10;
/// All warnings of an answer together; beyond this each is cut.
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
}

/// One request on its way through the filters.
pub(super) struct Call<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) parts: &'a Parts,
    pub(super) body: Bytes,
    pub(super) info: &'a RequestInfo,
    pub(super) query: &'a Query,
    pub(super) user: UserInfo,
    pub(super) warnings: &'a Warnings,
}

impl Call<'_> {
    /// Whether a person reads the answer.
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
        Self {
            shared: Arc::new(Shared { objects, plugins, version, stopping, fairness: Fairness::default() }),
        }
    }

    pub(crate) fn shut_down(&self) {
        self.shared.stopping.send_replace(true);
    }

    /// Handles a request whose body is not yet read.
    async fn handle<B>(self, request: Request<B>) -> Response<ApiBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let warnings = Warnings::default();
        let body = match read_body(&parts, body).await {
            Ok(body) => body,
            Err(status) => return respond::failure(&status),
        };
        let work = AssertUnwindSafe(self.filters(&parts, body, &warnings)).catch_unwind();
        let mut response = match work.await {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => respond::failure(&status),
            Err(_) => {
                tracing::error!(method = %parts.method, path = parts.uri.path(), "a handler panicked");
                respond::failure(&Status::internal(
                    "this request caused apiserver to panic. Look in the logs for details",
                ))
            }
        };
        add_headers(&mut response, &warnings);
        compress(&parts, response)
    }

    /// Request info → deadline → who → whether → what.
    async fn filters(
        &self,
        parts: &Parts,
        body: Bytes,
        warnings: &Warnings,
    ) -> Result<Response<ApiBody>, Status> {
        let shared = &self.shared;
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
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
        let route = shared.plugins.routes.iter().find_map(|route| Some((route, route.matches(&info.path)?)));
        let public = matches!(route, Some((_, RouteAccess::Public)));
        let user = if public { UserInfo::anonymous() } else { authenticate(shared, parts).await? };
        if !public {
            authorize(shared, &info, &query, &user).await?;
        }
        // A large collection may take its time; a watch ends by its own deadline.
        let unhurried = matches!(info.verb, "watch" | "deletecollection");
        let _turn = shared.fairness.enter(&info, &user)?;
        let call = Call { shared, parts, body, info: &info, query: &query, user, warnings };
        let work = async move {
            if call.info.is_resource {
                return handlers::resource(call).await;
            }
            match route {
                Some((route, _)) => {
                    let request = crate::server::RouteRequest {
                        parts,
                        body: call.body,
                        user: &call.user,
                        objects: &shared.objects,
                    };
                    route.handle(request).await
                }
                None => paths::answer(&call),
            }
        };
        if unhurried {
            return work.await;
        }
        let late = |_| Status::timeout("request did not complete within the allotted timeout", 1);
        tokio::time::timeout(timeout, work).await.map_err(late)?
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
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

async fn read_body<B>(parts: &Parts, body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.is_end_stream() || matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(Bytes::new());
    }
    let too_large = || Status::too_large(format!("limit is {BODY_LIMIT}"));
    let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.and_then(|text| text.parse::<usize>().ok()).is_some_and(|len| len > BODY_LIMIT) {
        return Err(too_large());
    }
    let limited = Limited::new(body, BODY_LIMIT);
    match tokio::time::timeout(REQUEST_TIMEOUT, limited.collect()).await {
        Err(_) => Err(Status::timeout("the request body did not arrive in time", 1)),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Status::bad_request(format!("the request body could not be read: {error}"))),
    }
}

async fn authenticate(shared: &Shared, parts: &Parts) -> Result<UserInfo, Status> {
    let plugins = &shared.plugins;
    let user = match parts.extensions.get::<UserInfo>() {
        Some(user) => user.clone(),
        None => match plugins.authenticator.authenticate(parts).await? {
            Some(user) => {
                OnRecognised::tell(&parts.extensions);
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

fn compress(parts: &Parts, response: Response<ApiBody>) -> Response<ApiBody> {
    let wanted = parts.headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let wanted = wanted.is_some_and(|text| text.split(',').any(|part| part.trim().starts_with("gzip")));
    if !wanted || response.body().len().is_none_or(|len| len <= GZIP_FROM) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let chunks = match body.into_chunks() {
        Ok(chunks) => chunks,
        Err(body) => return Response::from_parts(head, body),
    };
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for chunk in &chunks {
        if std::io::Write::write_all(&mut encoder, chunk).is_err() {
            return Response::from_parts(head, ApiBody::chunks(chunks));
        }
    }
    match encoder.finish() {
        Ok(bytes) => {
            head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            head.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
            Response::from_parts(head, ApiBody::full(bytes))
        }
        Err(_) => Response::from_parts(head, ApiBody::chunks(chunks)),
    }
}
