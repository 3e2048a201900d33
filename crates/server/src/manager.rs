//! Starts the management plane and stops it: the order of things is here, and nowhere else.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use drover_access::Downstreams;
use drover_access::connected::Connectivity;
use drover_access::proxy::Proxy;
use drover_access::registration::{CREDENTIAL_NAMESPACE, Registrar};
use drover_access::tokens::{KubeconfigAuthenticator, Tokens};
use drover_api::labels::rke::INFRA_MACHINE_NAME;
use drover_api::management::v3::Setting;
use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::{Credential, Pki, ServingCertificate, kubeconfig, server_config};
use drover_apiserver::controllers::ControllerOptions;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::identity::Authenticator;
use drover_apiserver::status::Status;
use drover_apiserver::storage::SqliteStorage;
use drover_jobs::{Runner, RunnerOptions};
use drover_machine::local::Local;
use drover_provisioning::bootstrap::script;
use drover_provisioning::context::{Options as ProvisioningOptions, SystemRandom};
use drover_provisioning::controllers::Provisioning;
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::settings::Settings;
use drover_runtime::{Caches, SystemClock};
use drover_tunnel::Registry;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clusters::Clusters;
use crate::datadir::{DataDir, write_private};
use crate::drivers::Builtin;
use crate::front::{Asset, Front, Parts};

/// The version of Kubernetes that the embedded API speaks.
const KUBERNETES_VERSION: &str = "v1.36.3";
/// Namespaces that Rancher's clients expect.
const NAMESPACES: [&str; 4] = ["cattle-system", CREDENTIAL_NAMESPACE, "fleet-default", "fleet-local"];
/// Local machines reach the manager at their gateway, in a network that holds nobody else: the port can be the same at
/// every start, so that agents find the manager again whatever port it has towards people.
const GATEWAY_PORT: u16 = 8443;
const LOCAL_RETRY: Duration = Duration::from_secs(2);

/// How to start a management plane.
pub struct ManagerOptions {
    pub data_dir: PathBuf,
    pub bind: SocketAddr,
    /// Where machines reach this server. Without one they are local machines, on the gateway of their own network.
    pub server_url: Option<String>,
    /// This program: local machines and Jobs run it again.
    pub exe: PathBuf,
    pub install_script: String,
    /// The agent's program, by asset name.
    pub assets: BTreeMap<String, Asset>,
}

/// A running management plane.
pub struct Manager {
    pub data_dir: DataDir,
    /// Where people on this host reach it.
    pub url: String,
    /// Acts with all rights.
    pub client: Client,
    /// Local machines; `None` where this host cannot carry them.
    pub local: Option<Local>,
    embedded: Arc<Embedded>,
    stop: CancellationToken,
    controllers: CancellationToken,
    tasks: TaskTracker,
}

impl Manager {
    /// Starts everything. The admin's kubeconfig is written, and the port answers, when this returns.
    pub async fn start(options: ManagerOptions) -> anyhow::Result<Self> {
        let data_dir = DataDir::open(&options.data_dir)
            .with_context(|| format!("data directory {} cannot be used", options.data_dir.display()))?;
        let storage = SqliteStorage::open(&data_dir.database())
            .with_context(|| format!("data directory {} cannot be used", data_dir.path().display()))?;
        let listener = listen(options.bind).await?;
        let bound = listener.local_addr()?;
        let url = format!("https://{}", reachable(bound));
        let now = Timestamp::now();
        let pki = Arc::new(Pki::open(&data_dir.tls(), now).context("certificates cannot be made")?);
        let (local, gateway) = open_local(&data_dir, &options).await;
        let server_url = options
            .server_url
            .clone()
            .or_else(|| gateway.map(|gateway| format!("https://{}", SocketAddr::new(gateway, GATEWAY_PORT))))
            .unwrap_or_else(|| url.clone());
        let names = serving_names(bound.ip(), gateway, &server_url);
        let serving = ServingCertificate::new(&pki.serving(&names, now)?)?;

        let stop = CancellationToken::new();
        let controllers = stop.child_token();
        let late = Arc::new(Late::default());
        let embedded = Embedded::start(EmbeddedOptions {
            storage: Arc::new(storage),
            clock: Arc::new(drover_apiserver::clock::SystemClock),
            version: KUBERNETES_VERSION.into(),
            pki: pki.clone(),
            admission: crate::admission::hooks(),
            authenticators: vec![late.clone()],
            anonymous: true,
            server_url: url.clone(),
            controllers: ControllerOptions {
                root_ca: Some(pki.ca_pem().to_owned()),
                ..ControllerOptions::default()
            },
        })
        .await?;
        let embedded = Arc::new(embedded);
        let client =
            drover_runtime::in_process_client(embedded.service(), UserInfo::system_masters("system:drover"));
        let settings = Settings {
            server_url,
            internal_server_url: url.clone(),
            cacerts: pki.ca_pem().to_owned(),
            ..Settings::default()
        };
        prepare(&client, &settings).await?;

        let caches = Caches::new(client.clone(), controllers.clone());
        let clock: Arc<dyn drover_runtime::Clock> = Arc::new(SystemClock);
        let (secrets, twins) = (caches.all::<Secret>(), caches.all());
        let tokens = Tokens::new(secrets.clone());
        late.set(Arc::new(KubeconfigAuthenticator::new(tokens.clone())));
        let tunnels = Registry::default();
        let downstreams = Downstreams::new(twins.clone(), secrets.clone(), tunnels.clone());
        let clusters = Clusters::new(downstreams.clone(), twins.clone(), caches.all(), controllers.clone());
        let provisioning = Provisioning::new(ProvisioningOptions {
            caches: caches.clone(),
            clock: clock.clone(),
            random: Arc::new(SystemRandom),
            settings: settings.clone(),
            releases: Releases::builtin(),
            downstream: Arc::new(clusters.clone()),
            drivers: Arc::new(Builtin::new(&data_dir, &options.exe)),
            install_script: options.install_script.clone(),
        });
        let front = Front::new(Parts {
            embedded: embedded.clone(),
            proxy: Proxy::new(twins.clone(), downstreams.clone()),
            tunnels,
            tokens,
            registrar: Registrar::new(client.clone(), twins.clone(), secrets.clone()),
            connect: provisioning.connect(),
            cacerts: pki.ca_pem().to_owned(),
            install_script: script::render(&script::Input {
                settings: &settings,
                agent_env_vars: &[],
                agent_var_dir: "",
                token: None,
                body: &options.install_script,
            }),
            assets: options.assets,
            images: drover_registry::Registry::new(data_dir.images(), data_dir.unpacked_images()),
        });

        let tasks = TaskTracker::new();
        tasks.spawn(provisioning.run(controllers.clone()));
        tasks.spawn(drover_capi::run(caches.clone(), Arc::new(clusters), clock.clone(), controllers.clone()));
        let connectivity = Connectivity::new(client.clone(), twins, downstreams, clock.clone());
        tasks.spawn(connectivity.run(controllers.clone()));
        let jobs = RunnerOptions {
            label: INFRA_MACHINE_NAME,
            program: options.exe.clone(),
            leading_args: vec!["machine".into(), "--data-dir".into(), data_dir.path().display().to_string()],
            env: vec![],
            dir: data_dir.jobs(),
            api_url: url.clone(),
            ca_pem: pki.ca_pem().to_owned(),
        };
        tasks.spawn({
            let stop = controllers.clone();
            async move { Runner::run(jobs, &caches, secrets, clock, stop).await }
        });

        let admin = pki.admin(now)?;
        let text = kubeconfig("drover", &url, pki.ca_pem(), "admin", Credential::ClientCertificate(&admin));
        write_private(&data_dir.kubeconfig(), text.as_bytes()).context("the kubeconfig cannot be written")?;
        let tls = Arc::new(server_config(&pki, serving)?);
        let handler = move |request| front.clone().answer(request);
        tasks.spawn(drover_https::serve(listener, tls.clone(), handler.clone(), stop.clone()));
        if let Some(local) = &local {
            let (local, stop) = (local.clone(), stop.clone());
            tasks.spawn(async move { serve_gateway(local, tls, handler, stop).await });
        }
        Ok(Self { data_dir, url, client, local, embedded, stop, controllers, tasks })
    }

    /// Stops: first what writes, then what answers. Machines go on.
    pub async fn stop(self) {
        self.embedded.shut_down();
        self.controllers.cancel();
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(Duration::from_secs(15), self.tasks.wait()).await.is_err() {
            tracing::warn!("some work did not end in time");
        }
        // Without machines there is nothing to hold: no process is left behind.
        if let Some(local) = self.local.filter(|local| !local.has_machines()) {
            match tokio::task::spawn_blocking(move || local.destroy()).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the empty network of local machines was not removed")
                }
            }
        }
    }
}

/// An authenticator that is known only once the API runs.
#[derive(Default)]
struct Late(OnceLock<Arc<dyn Authenticator>>);

impl Late {
    fn set(&self, authenticator: Arc<dyn Authenticator>) {
        // Set once, at start.
        let _ = self.0.set(authenticator);
    }
}

impl Authenticator for Late {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        match self.0.get() {
            Some(authenticator) => authenticator.authenticate(request),
            None => Box::pin(async { Ok(None) }),
        }
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("{address} is in use by another program; choose another with --bind ADDR:PORT")
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

/// Where people on this host reach an address that was bound.
fn reachable(bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), bound.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), bound.port()),
        _ => bound,
    }
}

fn serving_names(bound: IpAddr, gateway: Option<IpAddr>, server_url: &str) -> Vec<String> {
    let fixed =
        ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let mut names: Vec<String> = fixed.map(str::to_owned).into();
    if !bound.is_unspecified() {
        names.push(bound.to_string());
    }
    names.extend(gateway.map(|gateway| gateway.to_string()));
    let host = server_url.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    names.extend(host.map(|host| host.trim_matches(['[', ']']).to_owned()));
    names
        .extend(std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned()));
    names.sort();
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
}

/// The local driver's network, if this host can carry machines. If not, everything else still works.
async fn open_local(data_dir: &DataDir, options: &ManagerOptions) -> (Option<Local>, Option<IpAddr>) {
    let (dir, exe) = (data_dir.path().to_owned(), options.exe.clone());
    let opened = tokio::task::spawn_blocking(move || {
        let local = Local::open(&dir, &exe)?;
        let gateway = local.gateway()?;
        Ok::<_, drover_machine::local::Error>((local, gateway))
    });
    match opened.await {
        Ok(Ok((local, gateway))) => (Some(local), Some(gateway)),
        Ok(Err(error)) => {
            tracing::warn!(%error, "local machines are not available");
            (None, None)
        }
        Err(error) => {
            tracing::warn!(%error, "local machines are not available");
            (None, None)
        }
    }
}

/// Serves on the gateway of the local machines; again when their holder was restarted.
async fn serve_gateway<H, F, B>(
    local: Local,
    tls: Arc<rustls::ServerConfig>,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(http::Request<hyper::body::Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = http::Response<B>> + Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError>,
{
    while !stop.is_cancelled() {
        let opening = local.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let watch = opening.watch()?;
            let listener = opening.listen(GATEWAY_PORT)?;
            Ok::<_, drover_machine::local::Error>((watch, listener))
        });
        let (watch, listener) = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the local machines' gateway is not served");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(LOCAL_RETRY) => continue,
                }
            }
            Err(_) => return,
        };
        let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        let Ok(listener) = listener else { return };
        let serving = stop.child_token();
        let gone = tokio::task::spawn_blocking(move || watch.wait());
        let server =
            tokio::spawn(drover_https::serve(listener, tls.clone(), handler.clone(), serving.clone()));
        tokio::select! {
            () = stop.cancelled() => {
                let _ = server.await;
                return;
            }
            _ = gone => {
                tracing::warn!("the holder of the local machines is gone; starting it again");
                serving.cancel();
            }
        }
    }
}

/// What must exist before the first controller looks: kinds, namespaces, and the settings that clients read.
async fn prepare(client: &Client, settings: &Settings) -> anyhow::Result<()> {
    let params = PatchParams::apply("drover/server/prepare").force();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in drover_api::crds() {
        let name = crd.name_any();
        crds.patch(&name, &params, &Patch::Apply(&crd))
            .await
            .with_context(|| format!("CRD {name} cannot be installed"))?;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in NAMESPACES {
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        namespaces
            .patch(name, &params, &Patch::Apply(&namespace))
            .await
            .with_context(|| format!("namespace {name} cannot be made"))?;
    }
    let resource = ApiResource::erase::<Setting>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let values = [
        ("server-url", settings.server_url.as_str()),
        ("internal-server-url", settings.internal_server_url.as_str()),
        // Trimmed: a stored newline at the end would change the checksum that agents compute.
        ("cacerts", settings.cacerts.trim()),
    ];
    for (name, value) in values {
        let setting = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "value": value,
        });
        api.patch(name, &params, &Patch::Apply(&setting))
            .await
            .with_context(|| format!("setting {name} cannot be written"))?;
    }
    Ok(())
}
