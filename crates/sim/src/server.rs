//! `k3s server`: a Kubernetes API with the other services and files of K3s.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use drover_apiserver::auth::pki::{Credential, Pki, ServingCertificate, kubeconfig, server_config};
use drover_apiserver::clock::SystemClock;
use drover_apiserver::controllers::ControllerOptions;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::identity::OnAuthenticated;
use drover_apiserver::storage::{MemoryStorage, Retention, SqliteStorage, Storage, StorageError};
use drover_apiserver::{PeerCertificates, UserInfo};
use drover_https::Incoming;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{BoxError, ServiceExt};

use crate::Error;
use crate::config::Config;
use crate::join::{self, Tokens};
use crate::paths::Paths;

/// The port of the API and of the join endpoint.
pub const PORT: u16 = 6443;

/// A running control plane.
pub struct Server {
    pub client: Client,
    /// `https://address:6443`.
    pub url: String,
    embedded: Arc<Embedded>,
    storage: Arc<dyn Storage>,
}

/// The options of a control plane.
pub struct ServerOptions {
    pub config: Config,
    pub version: String,
    pub hostname: String,
    /// The address for other nodes.
    pub address: IpAddr,
    /// The address to listen on.
    pub bind: IpAddr,
    pub paths: Paths,
    pub datastore: Datastore,
}

/// How a server stores its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Datastore {
    /// In SQLite with full fsync, as in K3s without etcd.
    #[default]
    Sqlite,
    /// In memory, with a journal that is written asynchronously: for thousands of clusters in one process.
    Journal,
}

/// Limits for a cluster in memory, which has few and fast clients and shares a process with thousands of others.
const SHORT_HISTORY: Retention = Retention {
    max_age: SignedDuration::from_mins(1),
    min_events: 100,
    max_events: 2_000,
    max_bytes: 1 << 20,
};

impl Datastore {
    fn open(self, paths: &Paths) -> Result<Arc<dyn Storage>, StorageError> {
        Ok(match self {
            Self::Sqlite => Arc::new(SqliteStorage::open(&paths.database())?),
            Self::Journal => {
                Arc::new(MemoryStorage::journaled(&paths.database().join("journal"), SHORT_HISTORY)?)
            }
        })
    }
}

type Body = UnsyncBoxBody<Bytes, BoxError>;

impl Server {
    /// Starts the API and the other services. The API is ready when this returns.
    pub async fn start(
        options: ServerOptions,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let ServerOptions { config, version, hostname, address, bind, paths, datastore } = options;
        let now = Timestamp::now();
        let certificates =
            |error: drover_apiserver::auth::pki::PkiError| Error::Certificates(Box::new(error));
        let pki = Arc::new(Pki::open(&paths.tls(), now).map_err(certificates)?);
        let serving = ServingCertificate::new(
            &pki.serving(&names(&config, &hostname, address), now).map_err(certificates)?,
        )
        .map_err(certificates)?;
        let url = format!("https://{}", SocketAddr::new(address, PORT));
        let storage = datastore.open(&paths).map_err(|e| Error::Api(e.to_string()))?;
        let embedded = Embedded::start(EmbeddedOptions {
            storage: storage.clone(),
            clock: Arc::new(SystemClock),
            version,
            pki: pki.clone(),
            admission: vec![],
            authenticators: vec![],
            anonymous: false,
            server_url: url.clone(),
            controllers: ControllerOptions {
                root_ca: Some(pki.ca_pem().to_owned()),
                ..ControllerOptions::default()
            },
        })
        .await
        .map_err(|e| Error::Api(e.to_string()))?;
        let embedded = Arc::new(embedded);
        let client = drover_runtime::in_process_client(
            embedded.service(),
            UserInfo::system_masters("system:k3s-supervisor"),
        );
        bind_node_role(client.clone()).await?;
        write_files(&pki, &url, &paths, &config)?;

        let tokens = Arc::new(Tokens {
            server: config.text("token").ok_or_else(|| Error::Invalid("the server has no token".into()))?,
            agent: config.text("agent-token"),
        });
        let listener = crate::component::listen(SocketAddr::new(bind, PORT)).await?;
        let tls = Arc::new(server_config(&pki, serving).map_err(certificates)?);
        let front = Front { embedded: embedded.clone(), tokens, pki, client: client.clone() };
        let handler = move |request| front.clone().answer(request);
        tasks.spawn(drover_https::serve(listener, tls, handler, stop.clone()));
        tasks.spawn(crate::manifests::run(client.clone(), paths.manifests(), stop.clone()));
        tasks.spawn(crate::node_health::run(client.clone(), stop));
        Ok(Self { client, url, embedded, storage })
    }

    /// Closes watches and the store. Watches would otherwise stay open as long as the listener waits for requests.
    pub fn stop(self) {
        self.embedded.shut_down();
        self.storage.close();
    }
}

/// Routes a request by its path.
#[derive(Clone)]
struct Front {
    embedded: Arc<Embedded>,
    tokens: Arc<Tokens>,
    pki: Arc<Pki>,
    client: Client,
}

impl Front {
    async fn answer(self, mut request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            "/cacerts" => plain(self.pki.ca_pem().to_owned()),
            "/ping" => plain("pong".to_owned()),
            join::CERTIFICATE_PATH => {
                join::issue(request.headers(), &self.tokens, &self.pki, &self.client).await.map(boxed)
            }
            _ => {
                let peer = request.extensions().get::<drover_https::Peer>().cloned();
                if let Some(peer) = peer {
                    request.extensions_mut().insert(PeerCertificates(peer.certificates.clone()));
                    request
                        .extensions_mut()
                        .insert(OnAuthenticated(Arc::new(move || peer.mark_authenticated())));
                }
                let answer = match self.embedded.service().oneshot(request).await {
                    Ok(answer) => answer,
                    Err(never) => match never {},
                };
                answer.map(boxed)
            }
        }
    }
}

fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

fn plain(text: String) -> Response<Body> {
    let mut response = Response::new(boxed(Full::<Bytes>::from(text)));
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    response
}

fn names(config: &Config, hostname: &str, address: IpAddr) -> Vec<String> {
    let fixed = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "localhost",
        "127.0.0.1",
        "::1",
        "10.43.0.1",
    ];
    let mut names: Vec<String> = fixed.map(str::to_owned).into();
    names.extend([hostname.to_owned(), address.to_string()]);
    names.extend(config.list("tls-san"));
    names.extend(config.list("node-ip"));
    names.extend(config.text("advertise-address"));
    names.dedup();
    names
}

/// Writes the certificates and kubeconfigs to the paths of K3s, where probes and users expect them.
fn write_files(pki: &Pki, url: &str, paths: &Paths, config: &Config) -> Result<(), Error> {
    let now = Timestamp::now();
    let certificates = |error: drover_apiserver::auth::pki::PkiError| Error::Certificates(Box::new(error));
    let tls = paths.tls();
    for name in ["server-ca.crt", "client-ca.crt"] {
        crate::write(&tls.join(name), pki.ca_pem().as_bytes(), 0o644)?;
    }
    let admin = pki.client("system:admin", Some("system:masters"), now).map_err(certificates)?;
    let api = pki.client("kube-apiserver", Some("system:masters"), now).map_err(certificates)?;
    for (name, pair) in [("client-admin", &admin), ("client-kube-apiserver", &api)] {
        crate::write(&tls.join(format!("{name}.crt")), pair.cert_pem.as_bytes(), 0o644)?;
        crate::write(&tls.join(format!("{name}.key")), pair.key_pem.as_bytes(), 0o600)?;
    }
    let text = kubeconfig("default", url, pki.ca_pem(), "default", Credential::ClientCertificate(&admin));
    let mode = config
        .text("write-kubeconfig-mode")
        .and_then(|mode| u32::from_str_radix(&mode, 8).ok())
        .unwrap_or(0o600);
    crate::write(&paths.kubeconfig(), text.as_bytes(), mode)?;
    if let Some(token) = config.text("token") {
        crate::write(&paths.server().join("token"), token.as_bytes(), 0o600)?;
    }
    Ok(())
}

/// Grants kubelets the permissions of nodes.
async fn bind_node_role(client: Client) -> Result<(), Error> {
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
    use kube::api::{Api, Patch, PatchParams};
    let params = PatchParams::apply("k3s").force();
    fn failed(source: kube::Error) -> Error {
        Error::Kube { what: "bind the role of nodes", source }
    }
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "sim:node"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "sim:node"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sim:node"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    });
    Api::<ClusterRole>::all(client.clone())
        .patch("sim:node", &params, &Patch::Apply(role))
        .await
        .map_err(failed)?;
    Api::<ClusterRoleBinding>::all(client.clone())
        .patch("sim:node", &params, &Patch::Apply(binding))
        .await
        .map_err(failed)?;
    Ok(())
}
