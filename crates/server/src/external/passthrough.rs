//! Forwards requests for the Kubernetes API with the caller's credentials only.
//!
//! A bearer token is forwarded. A client certificate cannot be, because TLS ends at this port and the key stays with
//! the caller. Impersonating such callers would expose the manager's permissions to every mistake made here.

use std::sync::Arc;
use std::time::Duration;

use drover_access::downstream::{RequestBody, boxed};
use drover_access::{hop, proxy};
use drover_apiserver::http::pattern;
use drover_apiserver::identity::OnAuthenticated;
use drover_apiserver::status::Status;
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::ConfigExt as _;
use kube::config::AuthInfo;

/// Time limit until a response begins; kube-apiserver ends most requests after a minute.
const ANSWER_LIMIT: Duration = Duration::from_secs(75);
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The paths of the API; other paths are not forwarded.
const PATHS: [&str; 12] = [
    "/api",
    "/api/...",
    "/apis",
    "/apis/...",
    "/openapi",
    "/openapi/...",
    "/openid",
    "/openid/...",
    "/version",
    "/version/...",
    "/.well-known",
    "/.well-known/...",
];

type Send = dyn Fn(Request<RequestBody>) -> BoxFuture<'static, Result<Response<Incoming>, legacy::Error>>
    + std::marker::Send
    + Sync;

/// Forwards requests of users to the API.
pub struct Passthrough {
    url: Uri,
    send: Arc<Send>,
}

impl Passthrough {
    /// Uses the server and its CA from the kubeconfig, but no credentials.
    pub fn new(config: &Config) -> Result<Self, kube::Error> {
        let mut config = config.clone();
        config.auth_info = AuthInfo::default();
        config.headers.clear();
        let connector = config.rustls_https_connector()?;
        let http: Client<_, RequestBody> = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .build(connector);
        let send = Arc::new(move |request| -> BoxFuture<'static, _> { Box::pin(http.request(request)) });
        Ok(Self { url: config.cluster_url, send })
    }

    /// The paths that are forwarded, as [patterns](pattern).
    pub(super) fn paths() -> [&'static str; 12] {
        PATHS
    }

    /// The API's response; watches are streamed and upgrades are joined.
    pub async fn answer(&self, request: Request<RequestBody>) -> Response<RequestBody> {
        match self.forward(request).await {
            Ok(response) => response,
            Err(status) => proxy::error_response(&status),
        }
    }

    async fn forward(&self, mut request: Request<RequestBody>) -> Result<Response<RequestBody>, Status> {
        if !is_api(request.uri().path()) {
            return Err(Status::not_found_path());
        }
        *request.uri_mut() = target(&self.url, request.uri())?;
        *request.version_mut() = http::Version::HTTP_11;
        let nameless = !request.headers().contains_key(header::AUTHORIZATION);
        let recognised = request.extensions().get::<OnAuthenticated>().cloned();
        let upgrade = hop::wants_upgrade(request.headers());
        let caller = upgrade.then(|| hyper::upgrade::on(&mut request));
        clean(request.headers_mut(), upgrade);
        let sent = tokio::time::timeout(ANSWER_LIMIT, (self.send)(request)).await;
        let sent = sent.map_err(|_| Status::timeout("timed out waiting for the Kubernetes API", 1))?;
        let mut response = sent.map_err(|error| {
            Status::service_unavailable(format!(
                "the Kubernetes API at {} cannot be reached: {}",
                self.url,
                proxy::root(&error)
            ))
        })?;
        let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status());
        if refused && nameless {
            return Err(no_token(&self.url));
        }
        // Only the API can tell whether a token is valid; it answers an invalid one with 401.
        if let Some(OnAuthenticated(notify)) = recognised.filter(|_| !nameless)
            && response.status() != StatusCode::UNAUTHORIZED
        {
            notify();
        }
        match caller {
            Some(caller) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let callee = hyper::upgrade::on(&mut response);
                tokio::spawn(hop::join(caller, callee));
            }
            _ => hop::strip(response.headers_mut(), false),
        }
        Ok(response.map(boxed))
    }
}

/// The message for a rejected caller without a token.
pub fn no_token(url: &Uri) -> Status {
    let mut status = Status::unauthorized();
    status.message = format!(
        "no bearer token: Drover forwards tokens to the Kubernetes API, but cannot forward client certificates; use a token, or connect to {url} directly"
    );
    status
}

fn is_api(path: &str) -> bool {
    PATHS.iter().any(|known| pattern::matches(known, path))
}

/// Path and query of a request below the API's own URL, which may have a path, too.
fn target(api: &Uri, asked: &Uri) -> Result<Uri, Status> {
    let bad = |error: &dyn std::fmt::Display| Status::bad_request(format!("bad path: {error}"));
    let below = api.path().trim_end_matches('/');
    let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = api.clone().into_parts();
    parts.path_and_query = Some(format!("{below}{path}").parse().map_err(|error| bad(&error))?);
    Uri::from_parts(parts).map_err(|error| bad(&error))
}

/// Removes hop-by-hop headers, and those that only a trusted proxy may set.
fn clean(headers: &mut HeaderMap, upgrade: bool) {
    hop::strip(headers, upgrade);
    headers.remove(header::HOST);
    let named: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
    for name in named {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_api_are_forwarded() {
        for path in ["/api", "/api/v1/secrets", "/apis", "/version", "/openapi/v3", "/openid/v1/jwks"] {
            assert!(is_api(path), "{path}");
        }
        for path in ["/", "/apix", "/metrics", "/debug/pprof", "/logs", "/versions"] {
            assert!(!is_api(path), "{path}");
        }
    }

    #[test]
    fn paths_are_appended_to_the_path_of_the_api() {
        let target = |api: &str, asked: &str| target(&api.parse().unwrap(), &asked.parse().unwrap()).unwrap();
        assert_eq!(target("https://h:1/", "/api?watch=1"), "https://h:1/api?watch=1");
        assert_eq!(target("https://h:1/k8s/", "https://drover/api"), "https://h:1/k8s/api");
    }

    #[test]
    fn credentials_and_impersonation_are_forwarded_and_claims_of_a_proxy_are_dropped() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "impersonate-user", "x-remote-user", "x-remote-group", "host", "accept"]
        {
            headers.insert(http::HeaderName::from_static(name), "x".parse().unwrap());
        }
        clean(&mut headers, false);
        let mut left: Vec<_> = headers.keys().map(http::HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "authorization", "impersonate-user"]);
    }
}
