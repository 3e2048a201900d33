//! HTTP to a cluster's API through its tunnel.

mod connector;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use drover_api::management::v3::Cluster;
use drover_runtime::{Cache, ObjectKey};
use drover_tunnel::{Registry, Session};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;
use tower::BoxError;

use crate::registration::{CREDENTIAL_KEY, CREDENTIAL_NAMESPACE, ClusterParams};
use connector::{Route, TunnelConnector};

/// The body of a request to a cluster.
pub type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// Time limit until a response begins. An agent that is lost without a message is detected only by it.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(40);
/// An idle connection takes memory here, and files of the agent and of the API that it leads to.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Why a cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("cluster {0} does not exist")]
    Unknown(String),
    #[error("cluster {0} has not registered its API yet; it does so when its first control-plane node is up")]
    NotRegistered(String),
    #[error("cluster agent disconnected: {0}")]
    Disconnected(String),
    #[error("cluster {id} registered something unusable: {why}")]
    Unusable { id: String, why: String },
    #[error("the request to cluster {id} failed")]
    Request {
        id: String,
        #[source]
        source: BoxError,
    },
    #[error("cluster {0} did not answer in time")]
    Timeout(String),
}

/// Access to all downstream clusters. Clones share it.
#[derive(Clone)]
pub struct Downstreams {
    inner: Arc<Inner>,
}

struct Inner {
    clusters: Cache<Cluster>,
    secrets: Cache<Secret>,
    tunnels: Registry,
    open: Mutex<HashMap<String, (Endpoint, Downstream)>>,
}

/// Everything on which a connection depends: when it changes, the connection is recreated.
#[derive(Clone, PartialEq, Eq)]
struct Endpoint {
    url: String,
    ca: String,
    credential: Vec<u8>,
}

impl Downstreams {
    pub fn new(clusters: Cache<Cluster>, secrets: Cache<Secret>, tunnels: Registry) -> Self {
        Self { inner: Arc::new(Inner { clusters, secrets, tunnels, open: Mutex::default() }) }
    }

    pub fn tunnels(&self) -> &Registry {
        &self.inner.tunnels
    }

    /// The cluster's API, if it is registered and its tunnel is open.
    pub fn get(&self, id: &str) -> Result<Downstream, Unavailable> {
        let Some(cluster) = self.inner.clusters.get(&ObjectKey::cluster(id)) else {
            self.inner.open.lock().remove(id);
            return Err(Unavailable::Unknown(id.to_owned()));
        };
        let endpoint = self.endpoint(&cluster).ok_or_else(|| Unavailable::NotRegistered(id.to_owned()))?;
        if !self.inner.tunnels.is_connected(id) {
            return Err(Unavailable::Disconnected(id.to_owned()));
        }
        let mut open = self.inner.open.lock();
        if let Some((known, downstream)) = open.get(id)
            && *known == endpoint
        {
            return Ok(downstream.clone());
        }
        let downstream = Downstream::new(id, &endpoint, &self.inner.tunnels)
            .map_err(|why| Unavailable::Unusable { id: id.to_owned(), why })?;
        open.insert(id.to_owned(), (endpoint, downstream.clone()));
        Ok(downstream)
    }

    /// Removes the connection and the tunnels of a deleted cluster.
    pub fn forget(&self, id: &str) {
        self.inner.open.lock().remove(id);
        self.inner.tunnels.disconnect(id);
    }

    fn endpoint(&self, cluster: &Cluster) -> Option<Endpoint> {
        let status = cluster.status.as_ref()?;
        let key = ObjectKey::new(CREDENTIAL_NAMESPACE, &status.service_account_token_secret);
        let secret = self.inner.secrets.get(&key)?;
        let credential = secret.data.as_ref()?.get(CREDENTIAL_KEY)?.0.clone();
        let complete = !status.api_endpoint.is_empty() && !status.ca_cert.is_empty();
        complete.then(|| Endpoint {
            url: status.api_endpoint.clone(),
            ca: status.ca_cert.clone(),
            credential,
        })
    }
}

/// One cluster's API. Clones share its connections.
#[derive(Clone)]
pub struct Downstream {
    id: Arc<str>,
    authority: Authority,
    bearer: HeaderValue,
    http: legacy::Client<TunnelConnector, RequestBody>,
}

impl Downstream {
    /// The API behind a tunnel that is not accepted yet.
    pub(crate) fn through(session: &Session, id: &str, params: &ClusterParams) -> Result<Self, String> {
        let endpoint = Endpoint {
            url: format!("https://{}", params.address),
            ca: params.ca_cert.clone(),
            credential: params.token.clone().into_bytes(),
        };
        Self::by(Route::Through(session.clone()), id, &endpoint)
    }

    fn new(id: &str, endpoint: &Endpoint, tunnels: &Registry) -> Result<Self, String> {
        Self::by(Route::Newest(tunnels.clone(), id.into()), id, endpoint)
    }

    fn by(way: Route, id: &str, endpoint: &Endpoint) -> Result<Self, String> {
        let uri: Uri = endpoint.url.parse().map_err(|e| format!("apiEndpoint {:?}: {e}", endpoint.url))?;
        let authority =
            uri.authority().cloned().ok_or_else(|| format!("apiEndpoint {:?} has no host", endpoint.url))?;
        let ca = STANDARD.decode(&endpoint.ca).map_err(|e| format!("caCert is not base64: {e}"))?;
        let token = String::from_utf8_lossy(&endpoint.credential);
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| "the credential is not a token".to_owned())?;
        bearer.set_sensitive(true);
        let connector = TunnelConnector::new(way, &ca)?;
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_max_idle_per_host(4)
            .build(connector);
        Ok(Self { id: id.into(), authority, bearer, http })
    }

    /// Whether the connection has the same address, CA and credential as `other`.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.id, &other.id)
    }

    /// Sends a request with path and query of `request` and the cluster's own credential. The body of the response is
    /// streamed; the time limit applies only until it begins.
    pub async fn send(&self, request: Request<RequestBody>) -> Result<Response<Incoming>, Unavailable> {
        let request = self.address(request)?;
        match tokio::time::timeout(ANSWER_LIMIT, self.http.request(request)).await {
            Err(_) => Err(Unavailable::Timeout(self.id.to_string())),
            Ok(Err(error)) => Err(Unavailable::Request { id: self.id.to_string(), source: error.into() }),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Requests the version of the API and reads the whole response. An API that rejects the credential responds with
    /// 401.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<(), String> {
        let request = Request::get("/version").body(boxed(Empty::new())).map_err(|e| e.to_string())?;
        let asking = async {
            let response = self.send(request).await.map_err(|error| error.to_string())?;
            let status = response.status();
            response.into_body().collect().await.map_err(|error| error.to_string())?;
            if status.is_success() { Ok(()) } else { Err(format!("the cluster's API answered {status}")) }
        };
        tokio::time::timeout(limit, asking)
            .await
            .unwrap_or_else(|_| Err(format!("the cluster's API did not answer within {} s", limit.as_secs())))
    }

    /// A kube client of the cluster with the permissions of its registered service account.
    pub fn client(&self) -> kube::Client {
        let downstream = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let downstream = downstream.clone();
            async move { downstream.send(request.map(boxed)).await }
        });
        kube::Client::new(service, "default")
    }

    fn address(&self, mut request: Request<RequestBody>) -> Result<Request<RequestBody>, Unavailable> {
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(self.authority.clone());
        if parts.path_and_query.is_none() {
            parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        }
        let uri = Uri::from_parts(parts)
            .map_err(|e| Unavailable::Request { id: self.id.to_string(), source: e.into() })?;
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_11;
        request.headers_mut().remove(header::HOST);
        request.headers_mut().insert(header::AUTHORIZATION, self.bearer.clone());
        Ok(request)
    }
}

/// Any body as a request body.
pub fn boxed<B>(body: B) -> RequestBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
