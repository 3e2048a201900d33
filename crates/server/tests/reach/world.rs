//! A whole management plane, and clusters that are connected through real tunnels.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::{Pki, ServingCertificate, server_config};
use drover_apiserver::clock::SystemClock;
use drover_apiserver::controllers::ControllerOptions;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::storage::MemoryStorage;
use drover_server::{Manager, ManagerOptions};
use drover_tunnel::Dial;
use drover_tunnel::session::{Dialing, Io};
use http_body_util::{Either, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt as _;

pub(crate) struct World {
    pub(crate) manager: Manager,
    /// An administrator, over HTTPS.
    pub(crate) admin: Client,
    pub(crate) ca: String,
    /// The machine that represents a cluster, by the cluster's registration token.
    speakers: Mutex<HashMap<String, (String, Machine)>>,
    _dir: tempfile::TempDir,
}

/// A machine of a cluster in the API.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) name: String,
    /// Its own credential.
    pub(crate) bearer: String,
    /// Name of its plan secret.
    plan: String,
}

impl World {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manager = Manager::start(ManagerOptions {
            data_dir: dir.path().to_owned(),
            bind: "127.0.0.1:0".parse().unwrap(),
            server_url: None,
            kubeconfig: None,
            // There are no local machines.
            exe: PathBuf::from("/nonexistent/drover"),
            install_script: "#!/bin/sh\necho install\n".into(),
            assets: Default::default(),
            patience: Duration::ZERO,
        });
        let manager = manager.await.unwrap();
        let text = std::fs::read_to_string(manager.data_dir.kubeconfig()).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
        let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
        let ca = STANDARD.decode(cluster.certificate_authority_data.unwrap()).unwrap();
        let admin = client(&text).await;
        Self { manager, admin, ca: String::from_utf8(ca).unwrap(), speakers: Mutex::default(), _dir: dir }
    }

    pub(crate) fn api(&self, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if namespace.is_empty() {
            Api::all_with(self.manager.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.manager.client.clone(), namespace, &resource)
        }
    }

    pub(crate) async fn get(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        self.api(api_version, kind, namespace).get_opt(name).await.unwrap().map(|object| json!(object))
    }

    /// A cluster for custom machines: its id, and the token of its agents.
    pub(crate) async fn make_cluster(&self, name: &str) -> (String, String) {
        self.make_cluster_with(name, json!({})).await
    }

    /// The same with annotations.
    pub(crate) async fn make_cluster_with(&self, name: &str, annotations: Value) -> (String, String) {
        let cluster = json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {}},
        });
        let clusters = self.api("provisioning.cattle.io/v1", "Cluster", "default");
        clusters.create(&PostParams::default(), &serde_json::from_value(cluster).unwrap()).await.unwrap();
        let found = async || {
            let cluster = self.get("provisioning.cattle.io/v1", "Cluster", "default", name).await.unwrap();
            let id = cluster["status"]["clusterName"].as_str().ok_or("no id yet")?.to_owned();
            let secret =
                self.get("v1", "Secret", &id, "crt-token-default-token").await.ok_or("no secret yet")?;
            let token = STANDARD.decode(secret["data"]["token"].as_str().ok_or("no token yet")?).unwrap();
            Ok::<_, &str>((id, String::from_utf8(token).unwrap()))
        };
        let (id, token) = drover_testkit::eventually(found).await;
        let unregistered =
            Machine { name: format!("{name}-speaker"), bearer: String::new(), plan: String::new() };
        self.speakers.lock().insert(token.clone(), (name.to_owned(), unregistered));
        (id, token)
    }

    /// A custom machine in a cluster of [`World::make_cluster`], with roles such as `control-plane`.
    pub(crate) async fn make_machine(&self, cluster: &str, name: &str, roles: &[&str]) -> Machine {
        use drover_provisioning::machine::unmanaged;
        let target = unmanaged::Target { namespace: "default", cluster, name, token: None };
        let request = roles.iter().map(|role| (format!("role-{role}"), vec!["true".to_owned()])).collect();
        let made = unmanaged::objects(&target, &request);
        for mut object in [json!(made.bootstrap), json!(made.infrastructure), json!(made.machine)] {
            let kind = object["kind"].as_str().unwrap().to_owned();
            if kind == "CustomMachine" {
                object["spec"]["providerID"] = json!(format!("test://{name}"));
            }
            let api = self.api(object["apiVersion"].as_str().unwrap(), &kind, "default");
            api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        }
        let plan = drover_provisioning::bootstrap::objects::plan_name(name);
        let accounts: Api<ServiceAccount> = Api::namespaced(self.manager.client.clone(), "default");
        until(async || {
            let secret = self.get("v1", "Secret", "default", &plan).await;
            secret.is_some() && accounts.get_opt(&plan).await.unwrap().is_some()
        })
        .await;
        let made =
            accounts.create_token_request(&plan, &PostParams::default(), &TokenRequest::default()).await;
        Machine { name: name.to_owned(), bearer: made.unwrap().status.unwrap().token.unwrap(), plan }
    }

    /// The machine reports the CA of its cluster with its own credential.
    pub(crate) async fn report_ca(&self, machine: &Machine, pem: &str) {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "m",
            "clusters": [{"name": "m", "cluster": {
                "server": self.manager.url, "certificate-authority-data": STANDARD.encode(&self.ca),
            }}],
            "users": [{"name": "m", "user": {"token": machine.bearer}}],
            "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
        });
        let secrets: Api<Secret> = Api::namespaced(client(&kubeconfig.to_string()).await, "default");
        let reported = async || {
            let mut secret = secrets.get(&machine.plan).await.map_err(|error| error.to_string())?;
            let pem = k8s_openapi::ByteString(pem.as_bytes().to_vec());
            secret.data.get_or_insert_default().insert(drover_plan::keys::CLUSTER_CA.to_owned(), pem);
            // The planner also writes it.
            let written = secrets.replace(&machine.plan, &PostParams::default(), &secret).await;
            written.map(drop).map_err(|error| error.to_string())
        };
        drover_testkit::eventually(reported).await;
    }

    /// Status and reason of the management Cluster's `Connected`.
    pub(crate) async fn connected(&self, id: &str) -> (String, String) {
        let twin = self.get("management.cattle.io/v3", "Cluster", "", id).await.unwrap_or_default();
        let list = twin["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = list.into_iter().find(|condition| condition["type"] == "Connected").unwrap_or_default();
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    pub(crate) async fn is_connected(&self, id: &str) {
        until(async || self.connected(id).await.0 == "True").await;
    }

    /// A cluster's agent on one of its control plane machines: holds a tunnel until it is aborted. `params` are those
    /// of [`Downstream::params`].
    pub(crate) async fn agent(
        &self,
        token: &str,
        params: &Value,
        dial: Arc<dyn Dial>,
    ) -> Result<JoinHandle<drover_tunnel::Error>, drover_tunnel::Error> {
        let (cluster, mut machine) = self.speakers.lock().get(token).cloned().unwrap();
        if machine.bearer.is_empty() {
            machine = self.make_machine(&cluster, &machine.name, &["control-plane", "etcd"]).await;
            self.speakers.lock().insert(token.to_owned(), (cluster, machine.clone()));
        }
        // The agent ends with its cluster.
        if self.get("v1", "Secret", "default", &machine.plan).await.is_some() {
            let ca = STANDARD.decode(params["cluster"]["caCert"].as_str().unwrap()).unwrap();
            self.report_ca(&machine, &String::from_utf8(ca).unwrap()).await;
        }
        loop {
            match self.open(Some(token), Some(&machine.bearer), params, dial.clone()).await {
                // The caches may not have the machine's report yet; agents try again.
                Err(drover_tunnel::Error::Refused { status: 503, .. }) => {}
                other => return other,
            }
        }
    }

    /// Opens a tunnel with any credentials: a registration token, or a machine's own.
    pub(crate) async fn open(
        &self,
        token: Option<&str>,
        bearer: Option<&str>,
        params: &Value,
        dial: Arc<dyn Dial>,
    ) -> Result<JoinHandle<drover_tunnel::Error>, drover_tunnel::Error> {
        let uri: http::Uri = self.manager.url.parse().unwrap();
        let stream = self.connection().await;
        let mut headers = http::HeaderMap::new();
        if let Some(token) = token {
            headers.insert("x-api-tunnel-token", token.parse().unwrap());
        }
        if let Some(bearer) = bearer {
            headers.insert(http::header::AUTHORIZATION, format!("Bearer {bearer}").parse().unwrap());
        }
        headers.insert("x-api-tunnel-params", STANDARD.encode(params.to_string()).parse().unwrap());
        let uri = format!("wss://{}/v3/connect", uri.authority().unwrap()).parse().unwrap();
        let (_, run) = drover_tunnel::client::connect(stream, &uri, headers, dial).await?;
        Ok(tokio::spawn(run))
    }

    /// A connection to the port without a request.
    pub(crate) async fn connection(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let uri: http::Uri = self.manager.url.parse().unwrap();
        let stream = TcpStream::connect(uri.authority().unwrap().as_str()).await.unwrap();
        tls(&self.ca).connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap()
    }

    /// The value of a key in the kubeconfig Secret of a cluster, once there is one.
    pub(crate) async fn kubeconfig(&self, cluster: &str, key: &str) -> String {
        let secrets: Api<Secret> = Api::namespaced(self.manager.client.clone(), "default");
        let name = format!("{cluster}-kubeconfig");
        let found = async || secrets.get_opt(&name).await.unwrap().ok_or("no kubeconfig yet");
        text(&drover_testkit::eventually(found).await, key)
    }

    /// Whether the port's certificate contains this name.
    pub(crate) async fn is_called(&self, name: &'static str) -> bool {
        let uri: http::Uri = self.manager.url.parse().unwrap();
        let stream = TcpStream::connect(uri.authority().unwrap().as_str()).await.unwrap();
        tls(&self.ca).connect(name.try_into().unwrap(), stream).await.is_ok()
    }

    /// An administrator's client of a cluster, through the proxy.
    pub(crate) async fn proxied(&self, id: &str) -> Client {
        let text = std::fs::read_to_string(self.manager.data_dir.kubeconfig()).unwrap();
        let server = format!("{}/k8s/clusters/{id}", self.manager.url);
        client(&text.replace(&self.manager.url, &server)).await
    }

    pub(crate) async fn stop(self) {
        self.manager.stop().await;
    }
}

/// A client with a kubeconfig.
pub(crate) async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // All responses are returned, including a 503.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn tls(ca: &str) -> tokio_rustls::TlsConnector {
    use rustls_pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls_pki_types::CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config).into()
}

pub(crate) async fn until(condition: impl AsyncFn() -> bool) {
    drover_testkit::eventually(async || if condition().await { Ok(()) } else { Err("not yet") }).await;
}

/// A cluster's API, over TLS.
pub(crate) struct Downstream {
    pub(crate) client: Client,
    pub(crate) embedded: Arc<Embedded>,
    /// The requests that it received.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    /// How many connections are upgraded now.
    pub(crate) upgraded: Arc<AtomicUsize>,
    pub(crate) address: std::net::SocketAddr,
    pub(crate) ca: String,
    _stop: DropGuard,
}

impl Downstream {
    pub(crate) async fn start() -> Self {
        let now = jiff::Timestamp::now();
        let pki = Arc::new(Pki::in_memory(now).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let embedded = Embedded::start(EmbeddedOptions {
            storage: Arc::new(MemoryStorage::new()),
            clock: Arc::new(SystemClock),
            version: "v1.34.1+k3s1".into(),
            pki: pki.clone(),
            admission: vec![],
            authenticators: vec![],
            anonymous: false,
            server_url: format!("https://{address}"),
            controllers: ControllerOptions::default(),
        });
        let embedded = Arc::new(embedded.await.unwrap());
        let client = drover_runtime::in_process_client(embedded.service(), UserInfo::system_masters("test"));
        let serving = ServingCertificate::new(&pki.serving(&["127.0.0.1".to_owned()], now).unwrap()).unwrap();
        let tls = Arc::new(server_config(&pki, serving).unwrap());
        let (service, stop) = (embedded.clone(), CancellationToken::new());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let upgraded = Arc::new(AtomicUsize::new(0));
        let (log, open) = (asked.clone(), upgraded.clone());
        let handler = move |mut request: http::Request<drover_https::Incoming>| {
            // Like a server that authenticates a request.
            if let Some(peer) = request.extensions().get::<drover_https::Peer>() {
                peer.mark_authenticated();
            }
            let (service, open) = (service.service(), open.clone());
            log.lock().push(request.uri().path().to_owned());
            async move {
                if request.uri().path() == ECHO {
                    return echo(&mut request, open).map(Either::Right);
                }
                service.oneshot(request).await.unwrap_or_else(|never| match never {}).map(Either::Left)
            }
        };
        tokio::spawn(drover_https::serve(listener, tls, handler, stop.clone()));
        let ca = pki.ca_pem().to_owned();
        let cluster = Self { client, embedded, asked, upgraded, address, ca, _stop: stop.drop_guard() };
        let name = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        namespaces.create(&PostParams::default(), &name("cattle-system")).await.unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client.clone());
        let binding = serde_json::from_value(json!({
            "metadata": {"name": "cattle-admin-binding"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "cattle-system", "name": "cattle"}],
        }));
        bindings.create(&PostParams::default(), &binding.unwrap()).await.unwrap();
        cluster.make_account().await;
        cluster
    }

    pub(crate) fn accounts(&self) -> Api<ServiceAccount> {
        Api::namespaced(self.client.clone(), "cattle-system")
    }

    pub(crate) async fn make_account(&self) {
        let account = serde_json::from_value(json!({"metadata": {"name": "cattle"}})).unwrap();
        self.accounts().create(&PostParams::default(), &account).await.unwrap();
    }

    /// What the agent registers, with a new token.
    pub(crate) async fn params(&self) -> Value {
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let made =
            self.accounts().create_token_request("cattle", &PostParams::default(), &request).await.unwrap();
        json!({"cluster": {
            "address": self.address.to_string(),
            "token": made.status.unwrap().token,
            "caCert": STANDARD.encode(&self.ca),
        }})
    }
}

/// Where a [`Downstream`] upgrades a connection, as for `exec`, and echoes its input.
pub(crate) const ECHO: &str = "/echo";

fn echo(
    request: &mut http::Request<drover_https::Incoming>,
    open: Arc<AtomicUsize>,
) -> http::Response<Empty<bytes::Bytes>> {
    let upgrade = request.headers().get(http::header::UPGRADE).cloned();
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
        open.fetch_add(1, Ordering::SeqCst);
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
        open.fetch_sub(1, Ordering::SeqCst);
    });
    let mut response = http::Response::new(Empty::new());
    *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(http::header::CONNECTION, "upgrade".parse().unwrap());
    response.headers_mut().extend(upgrade.map(|protocol| (http::header::UPGRADE, protocol)));
    response
}

/// Connects to the requested address, and counts open connections.
#[derive(Clone, Default)]
pub(crate) struct Dialer {
    open: Arc<AtomicUsize>,
}

impl Dialer {
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Dial for Dialer {
    fn dial(&self, _: String, address: String) -> Dialing {
        let open = self.open.clone();
        Box::pin(async move {
            let mut real = TcpStream::connect(address).await?;
            let (near, mut far) = tokio::io::duplex(64 * 1024);
            open.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                // Ends when either side ends.
                let _ = tokio::io::copy_bidirectional(&mut real, &mut far).await;
                open.fetch_sub(1, Ordering::SeqCst);
            });
            Ok(Box::new(near) as Box<dyn Io>)
        })
    }
}

/// Connects to the requested address until it is killed; from then on nothing is transferred.
#[derive(Clone, Default)]
pub(crate) struct Mortal {
    alive: Dialer,
    dead: Arc<AtomicBool>,
    gone: CancellationToken,
}

impl Mortal {
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.gone.cancel();
    }
}

impl Dial for Mortal {
    fn dial(&self, proto: String, address: String) -> Dialing {
        let (gone, dead) = (self.gone.clone(), self.dead.load(Ordering::SeqCst));
        let real = self.alive.dial(proto, address);
        Box::pin(async move {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            if dead {
                std::mem::forget(far);
            } else {
                let mut real = real.await?;
                tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut real, &mut far) => {}
                        () = gone.cancelled() => std::mem::forget(far),
                    }
                });
            }
            Ok(Box::new(near) as Box<dyn Io>)
        })
    }
}

pub(crate) fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}
