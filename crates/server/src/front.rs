//! Dispatches the requests of the HTTPS port by path.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use drover_access::acceptor::TunnelAcceptor;
use drover_access::downstream::{RequestBody, boxed};
use drover_access::proxy::{self, Proxy};
use drover_apiserver::PeerCertificates;
use drover_apiserver::identity::{OnAuthenticated, PeerAddress};
use drover_https::Incoming;
use drover_plan::AgentOffer;
use drover_provisioning::bootstrap::script;
use drover_provisioning::registration::connect::{Call, Connect};
use drover_provisioning::settings::CurrentSettings;
use drover_registry::Registry as Images;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{Empty, Full};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::backend::Backend;
use crate::metrics::{Agents, Metrics};
use crate::routes::{self, Endpoint, Route};

/// The response to the import command of a registration token.
const NO_IMPORT: &str = "Importing clusters is not supported yet. To add a machine to a cluster, run the command printed by `drover get registration-command`.\n";

/// Answers all requests. Clones share it.
#[derive(Clone)]
pub struct Front {
    inner: Arc<Parts>,
}

/// The parts of a [`Front`].
pub struct Parts {
    pub backend: Backend,
    pub proxy: Proxy,
    pub acceptor: TunnelAcceptor,
    pub connect: Connect,
    pub settings: CurrentSettings,
    /// The agent's install script, to which the current settings are prepended.
    pub install_script: String,
    /// Files below `/assets/`, by name.
    pub assets: BTreeMap<String, Asset>,
    /// Installer images below `/v2/`.
    pub images: Images,
    pub metrics: Metrics,
    pub agents: Agents,
}

/// A file that machines download.
#[derive(Clone)]
pub enum Asset {
    Embedded(&'static [u8]),
    File(PathBuf),
}

/// The agents among the assets. An unreadable one is not offered, and downloading it returns the error.
pub async fn agent_offer(assets: &BTreeMap<String, Asset>) -> AgentOffer {
    let mut offer = AgentOffer::default();
    for arch in ["amd64", "arm64"] {
        let sum = match assets.get(&AgentOffer::asset(arch)) {
            None => continue,
            Some(Asset::Embedded(bytes)) => Sha256::digest(bytes),
            Some(Asset::File(path)) => match tokio::fs::read(path).await {
                Ok(bytes) => Sha256::digest(bytes),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "failed to read the agent; it is not offered");
                    continue;
                }
            },
        };
        offer.sha256.insert(arch.to_owned(), sum.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    offer
}

impl Front {
    pub fn new(parts: Parts) -> Self {
        Self { inner: Arc::new(parts) }
    }

    /// Answers one request.
    pub async fn answer(self, mut request: Request<Incoming>) -> Response<RequestBody> {
        if let Some(peer) = request.extensions().get::<drover_https::Peer>().cloned() {
            request.extensions_mut().insert(PeerCertificates(peer.certificates.clone()));
            request.extensions_mut().insert(PeerAddress(peer.address));
            request.extensions_mut().insert(OnAuthenticated(Arc::new(move || peer.mark_authenticated())));
        }
        let Some(route) = routes::find(request.uri().path()) else {
            let is_agent = Agents::is_agent(&request);
            let response = self.inner.backend.answer(request).await;
            let follows = is_agent && response.status() == StatusCode::OK;
            return if follows { response.map(|body| self.inner.agents.count(body)) } else { response };
        };
        if !route.accepts(request.method()) {
            return not_allowed(request.method(), route);
        }
        match route.endpoint {
            Endpoint::Tunnel => self.tunnel(request).await,
            Endpoint::Registration => self.agent(&request).await,
            // Exactly one newline at the end, as in all computations of the checksum.
            Endpoint::CaCerts => {
                text(StatusCode::OK, format!("{}\n", self.inner.settings.now().cacerts.trim()))
            }
            Endpoint::CaCertsSetting => self.cacerts_setting(),
            Endpoint::Ping => text(StatusCode::OK, "pong"),
            Endpoint::InstallScript => text(StatusCode::OK, self.install_script()),
            Endpoint::Asset => {
                let name = request.uri().path().strip_prefix("/assets/").unwrap_or_default();
                self.asset(request.method(), name).await
            }
            // Public like the assets: the images are not secret, and machines have no credential yet.
            Endpoint::Images => self.images(&request).await,
            // The path of the import commands of registration tokens.
            Endpoint::Import => text(StatusCode::NOT_IMPLEMENTED, NO_IMPORT),
            Endpoint::Cluster => self.cluster(request).await,
            Endpoint::Metrics => self.metrics(request).await,
        }
    }

    async fn images(&self, request: &Request<Incoming>) -> Response<RequestBody> {
        self.inner.images.answer(request.method(), request.uri(), request.headers()).await.map(boxed)
    }

    async fn metrics(&self, request: Request<Incoming>) -> Response<RequestBody> {
        let (parts, _) = request.into_parts();
        match self.inner.backend.admit(&parts).await {
            Ok(_) => {
                OnAuthenticated::notify(&parts.extensions);
                self.inner.metrics.answer()
            }
            Err(status) => proxy::error_response(&status),
        }
    }

    async fn cluster(&self, request: Request<Incoming>) -> Response<RequestBody> {
        let (parts, body) = request.into_parts();
        match self.inner.backend.authenticate(&parts).await {
            Ok(user) => {
                OnAuthenticated::notify(&parts.extensions);
                self.inner.proxy.serve(&user, Request::from_parts(parts, boxed(body))).await
            }
            Err(status) => proxy::error_response(&status),
        }
    }

    /// A cluster's agent opens its tunnel. Nothing is recorded here: what the tunnel registers is verified through it
    /// first.
    async fn tunnel(&self, request: Request<Incoming>) -> Response<RequestBody> {
        if !drover_tunnel::server::is_upgrade(request.headers()) {
            return text(StatusCode::BAD_REQUEST, "this path requires a WebSocket upgrade");
        }
        let (parts, body) = request.into_parts();
        // A caller without a credential is identified only by its registration token.
        let user = match parts.headers.contains_key(header::AUTHORIZATION) {
            true => match self.inner.backend.authenticate(&parts).await {
                Ok(user) => Some(user),
                Err(status) if status.code < 500 => {
                    return text(StatusCode::UNAUTHORIZED, "the credential of the machine is invalid");
                }
                Err(status) => return text(StatusCode::SERVICE_UNAVAILABLE, status.message),
            },
            false => None,
        };
        let admitted = match self.inner.acceptor.admit(&parts.headers, user.as_ref()).await {
            Ok(admitted) => admitted,
            Err(refusal) => return text(refusal.status, refusal.text),
        };
        OnAuthenticated::notify(&parts.extensions);
        let mut request = Request::from_parts(parts, body);
        let Some((response, upgraded)) = drover_tunnel::server::upgrade(&mut request) else {
            return text(StatusCode::BAD_REQUEST, "this path requires a WebSocket upgrade");
        };
        let acceptor = self.inner.acceptor.clone();
        tokio::spawn(async move { acceptor.serve(admitted, upgraded).await });
        response.map(|()| boxed(Empty::new()))
    }

    async fn agent(&self, request: &Request<Incoming>) -> Response<RequestBody> {
        let header = |name: header::HeaderName| {
            request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let bearer = header(header::AUTHORIZATION);
        let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in request.headers() {
            if let Some(name) = name.as_str().strip_prefix("x-cattle-") {
                // All of them: a variable that was missing here would be ignored without an error.
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                headers.entry(name.to_owned()).or_default().push(value);
            }
        }
        let host = request.uri().authority().map_or_else(|| header(header::HOST), ToString::to_string);
        let call = Call {
            bearer: bearer.strip_prefix("Bearer ").unwrap_or_default().trim().to_owned(),
            headers,
            host,
            address: request.extensions().get::<PeerAddress>().map(|peer| peer.0.ip()),
        };
        let recognised = || OnAuthenticated::notify(request.extensions());
        let answer = self.inner.connect.agent_recognised(&call, &recognised).await;
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = text(status, answer.body);
        if answer.status == 200 {
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        }
        if let Some(seconds) = answer.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }

    fn install_script(&self) -> String {
        script::render(&script::Input {
            settings: &self.inner.settings.now(),
            agent_env_vars: &[],
            agent_var_dir: "",
            token: None,
            body: &self.inner.install_script,
        })
    }

    fn cacerts_setting(&self) -> Response<RequestBody> {
        let settings = self.inner.settings.now();
        let setting =
            json!({"id": "cacerts", "type": "setting", "name": "cacerts", "value": settings.cacerts.trim()});
        let mut response = text(StatusCode::OK, setting.to_string());
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        response
    }

    async fn asset(&self, method: &Method, name: &str) -> Response<RequestBody> {
        let (length, body) = match self.inner.assets.get(name) {
            None => return text(StatusCode::NOT_FOUND, format!("asset {name:?} not found")),
            Some(Asset::Embedded(bytes)) => (bytes.len() as u64, boxed(Full::new(Bytes::from_static(bytes)))),
            Some(Asset::File(path)) => match crate::download::open(path).await {
                Ok(opened) => opened,
                Err(error) => return text(StatusCode::NOT_FOUND, format!("{name}: {error}")),
            },
        };
        let body = if *method == Method::HEAD { boxed(Empty::new()) } else { body };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, length.into());
        response
    }
}

fn not_allowed(method: &Method, route: &Route) -> Response<RequestBody> {
    let allowed = route.allowed();
    let why = format!("{method} is not allowed on {}: use {allowed}\n", route.path);
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, why);
    response.headers_mut().extend(allowed.parse().ok().map(|value| (header::ALLOW, value)));
    response
}

pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Response<RequestBody> {
    let mut response = Response::new(boxed(Full::<Bytes>::from(body.into())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
