//! Starts and stops the management plane on this host: adds the data directory, port, local machines and Job runner
//! to [`crate::plane`].

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use drover_api::labels::rke::INFRA_MACHINE_NAME;
use drover_api::names::JOB_RUNNER;
use drover_apiserver::auth::pki::{Credential, Pki, ServingCertificate, kubeconfig, server_config};
use drover_apiserver::storage::{SqliteStorage, StorageError};
use drover_jobs::{Runner, RunnerOptions};
use drover_local_machines::Local;
use drover_provisioning::settings::{CurrentSettings, Settings};
use jiff::Timestamp;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::backend::Backing;
use crate::certificate;
use crate::datadir::{DataDir, write_private};
use crate::drivers::Builtin;
use crate::external::leader::Leadership;
use crate::external::standby::until_leader;
use crate::external::{External, authority};
use crate::front::Asset;
use crate::plane::{Plane, PlaneOptions, Port};
use crate::shell::quoted;

/// Local machines reach the manager at the gateway of their own network. The port there is the same at every start,
/// so that agents find the manager after its public port has changed.
const GATEWAY_PORT: u16 = 8443;
const LOCAL_RETRY: Duration = Duration::from_secs(2);

/// Options of a management plane.
pub struct ManagerOptions {
    pub data_dir: PathBuf,
    pub bind: SocketAddr,
    /// URL at which machines reach this server. Without one, machines are local and use the gateway of their network.
    pub server_url: Option<String>,
    /// Kubeconfig of an external Kubernetes API; without one, the API is embedded.
    pub kubeconfig: Option<PathBuf>,
    /// This program, which local machines and Jobs run.
    pub exe: PathBuf,
    pub install_script: String,
    /// The agent's program, by asset name.
    pub assets: BTreeMap<String, Asset>,
    /// How long clusters that were connected before may stay disconnected before that is reported.
    pub patience: Duration,
}

/// A running management plane.
pub struct Manager {
    pub data_dir: DataDir,
    /// URL for users on this host.
    pub url: String,
    /// A client with all permissions.
    pub client: Client,
    /// Local machines; `None` if this host does not support them.
    pub local: Option<Local>,
    plane: Plane,
    /// Only on an external API, which other servers may use as well.
    leadership: Option<Leadership>,
    _api: Api,
}

impl Manager {
    /// Starts everything. When this returns, the administrator's kubeconfig is written and the port answers.
    pub async fn start(options: ManagerOptions) -> anyhow::Result<Self> {
        let unusable = || format!("data directory {} cannot be used", options.data_dir.display());
        let data_dir = DataDir::open(&options.data_dir).with_context(unusable)?;
        let api = Api::open(&data_dir, options.kubeconfig.as_deref(), unusable).await?;
        let listener = listen(options.bind).await?;
        let bound = listener.local_addr()?;
        let url = format!("https://{}", reachable(bound));
        let now = Timestamp::now();
        let pki = Arc::new(api.authority(&data_dir, now).await?);
        let (listener, leadership) = api.lead(listener, &pki).await?;
        let (local, gateway) = open_local(&data_dir, &options).await;
        let server_url = options
            .server_url
            .clone()
            .or_else(|| gateway.map(|gateway| format!("https://{}", SocketAddr::new(gateway, GATEWAY_PORT))))
            .unwrap_or_else(|| url.clone());
        let names = serving_names(bound.ip(), gateway, &server_url);
        let serving = ServingCertificate::new(&pki.serving(&names, now)?)?;

        let plane = Plane::start(PlaneOptions {
            api: api.backing(),
            pki: pki.clone(),
            serving: serving.clone(),
            url: url.clone(),
            server_url,
            drivers: Arc::new(Builtin::new(&data_dir, &options.exe)),
            install_script: options.install_script,
            assets: options.assets,
            images: data_dir.registry(),
            patience: options.patience,
        })
        .await?;
        if leadership.is_some() {
            plane.metrics.leads(crate::external::leader::NAME, true);
        }
        let jobs = RunnerOptions {
            label: INFRA_MACHINE_NAME,
            managed_by: JOB_RUNNER,
            program: options.exe.clone(),
            leading_args: vec!["machine".into(), "--data-dir".into(), data_dir.path().display().to_string()],
            env: vec![],
            dir: data_dir.jobs(),
            api_url: url.clone(),
            ca_pem: pki.ca_pem().to_owned(),
            limit: job_limit(plane.settings()),
            metrics: drover_jobs::Metrics::default(),
        };
        plane.metrics.register(|registry| jobs.metrics.register(registry));
        plane.join(|parts| async move {
            Runner::run(jobs, &parts.caches, parts.clock, parts.stop).await;
        });

        let authority = pki.clone();
        plane.join(|parts| certificate::follow(serving, authority, names, parts.settings, parts.stop));

        let kept = data_dir.clone();
        plane.join(|parts| crate::kubeconfigs::run(kept, parts.caches.all(), parts.stop));

        if let Api::Embedded(_) = api {
            let admin = pki.admin(now)?;
            let text =
                kubeconfig("drover", &url, pki.ca_pem(), "admin", Credential::ClientCertificate(&admin));
            write_private(&data_dir.kubeconfig(), text.as_bytes())
                .context("failed to write the kubeconfig")?;
        }
        plane.serve(listener);
        if let Some(local) = &local {
            let (local, port) = (local.clone(), plane.port());
            plane.join(|_| serve_gateway(local, port));
        }
        let client = plane.client.clone();
        Ok(Self { data_dir, url, client, local, plane, leadership, _api: api })
    }

    /// Every path that the port answers, as [patterns](drover_apiserver::http::pattern).
    pub fn paths(&self) -> Vec<&'static str> {
        self.plane.paths()
    }

    /// Completes when another server may be the leader and this one must exit. Never on the embedded API.
    pub async fn lost_leadership(&self) {
        match &self.leadership {
            Some(leadership) => leadership.lost().cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Completes when a part of it has panicked.
    pub async fn broken(&self) {
        self.plane.broken().await;
    }

    /// Stops the controllers, then the port. Machines keep running.
    pub async fn stop(self) {
        self.plane.stop().await;
        if let Some(leadership) = self.leadership {
            leadership.release().await;
        }
        // Without machines no holder process is needed.
        if let Some(local) = self.local.filter(|local| !local.has_machines()) {
            match tokio::task::spawn_blocking(move || local.destroy()).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "failed to remove the unused network of local machines")
                }
            }
        }
    }
}

/// The Kubernetes API of the management plane, before it is started.
enum Api {
    Embedded(Arc<SqliteStorage>),
    External { api: External, name: String, _claim: std::fs::File },
}

impl Api {
    async fn open(
        data_dir: &DataDir,
        kubeconfig: Option<&Path>,
        unusable: impl Fn() -> String,
    ) -> anyhow::Result<Self> {
        let Some(kubeconfig) = kubeconfig else {
            data_dir.claim_for_embedded().with_context(&unusable)?;
            data_dir.close_database().with_context(&unusable)?;
            let storage = SqliteStorage::open(&data_dir.database());
            let storage = storage.map_err(|error| with_remedy(error, data_dir)).with_context(&unusable)?;
            return Ok(Self::Embedded(Arc::new(storage)));
        };
        let (_claim, name) = data_dir.claim_for_external().with_context(&unusable)?;
        let api = External::connect(kubeconfig).await?;
        crate::prepare::system_namespace(api.client()).await?;
        Ok(Self::External { api, name, _claim })
    }

    /// The certificate authority of the port.
    async fn authority(&self, data_dir: &DataDir, now: Timestamp) -> anyhow::Result<Pki> {
        match self {
            Self::Embedded(_) => Pki::open(&data_dir.tls(), now).context("failed to create certificates"),
            Self::External { api, .. } => authority::open(api.client(), &data_dir.tls(), now).await,
        }
    }

    /// On an external API, waits until this server is the leader.
    async fn lead(
        &self,
        listener: TcpListener,
        pki: &Pki,
    ) -> anyhow::Result<(TcpListener, Option<Leadership>)> {
        let Self::External { api, name, .. } = self else { return Ok((listener, None)) };
        // Nothing on this host is changed before, so the machines' gateway is not in this certificate.
        let names = serving_names(listener.local_addr()?.ip(), None, "");
        let serving = ServingCertificate::new(&pki.temporary_serving(&names, Timestamp::now())?)?;
        let tls = Arc::new(server_config(pki, serving)?);
        let (listener, waiting) = shared(listener)?;
        Ok((listener, Some(until_leader(api, name, waiting, tls).await)))
    }

    fn backing(&self) -> Backing {
        match self {
            Self::Embedded(storage) => Backing::Embedded(storage.clone()),
            Self::External { api, .. } => Backing::External(api.clone()),
        }
    }
}

/// Adds a remedy to the error of a damaged store. Starting without a backup requires a new directory, because the
/// machines in the old one belong to the lost store.
fn with_remedy(error: StorageError, data_dir: &DataDir) -> anyhow::Error {
    let StorageError::Damaged { .. } = error else { return error.into() };
    let dir = data_dir.path().display();
    anyhow::anyhow!(
        "{error}; restore a copy of {}, or start with an empty directory: move {dir} away, or run `drover quickstart --delete --data-dir {}`",
        data_dir.database().display(),
        quoted(&dir.to_string()),
    )
}

/// How many Jobs may run at once, from the Setting. Jobs mostly wait for other machines.
fn job_limit(settings: &CurrentSettings) -> watch::Receiver<usize> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let limit = move |settings: &Settings| match settings.machine_job_concurrency {
        Some(limit) => limit as usize,
        None => (4 * cores).max(8),
    };
    let current = settings.clone();
    let (sender, receiver) = watch::channel(limit(&current.now()));
    settings.on_change(move || _ = sender.send_replace(limit(&current.now())));
    receiver
}

/// Duplicates a listening socket for two servers that accept one after the other.
fn shared(listener: TcpListener) -> anyhow::Result<(TcpListener, TcpListener)> {
    let listener = listener.into_std()?;
    let other = listener.try_clone()?;
    Ok((TcpListener::from_std(listener)?, TcpListener::from_std(other)?))
}

/// Checks that the address can be bound. Another program may still bind it afterwards.
pub async fn can_listen(address: SocketAddr) -> anyhow::Result<()> {
    listen(address).await.map(drop)
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("{address} is in use by another program; choose another address with --bind ADDR:PORT")
        }
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            bail!(
                "{address} is not assigned to this host; choose another address with --bind ADDR:PORT, or 0.0.0.0 for all addresses"
            )
        }
        Err(error)
            if error.kind() == std::io::ErrorKind::PermissionDenied && address.port() < first_free_port() =>
        {
            bail!(
                "permission denied for {address}: ports below {} are reserved for root; choose another port with --bind ADDR:PORT",
                first_free_port()
            )
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

/// The first port that ordinary users may bind.
fn first_free_port() -> u16 {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    setting.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// The address at which users on this host reach a bound address.
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
    names.extend(certificate::host_of(server_url));
    names
        .extend(std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned()));
    names.sort();
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
}

/// Opens the network of local machines, if this host supports them. Everything else works without it.
async fn open_local(data_dir: &DataDir, options: &ManagerOptions) -> (Option<Local>, Option<IpAddr>) {
    let (dir, exe) = (data_dir.path().to_owned(), options.exe.clone());
    let opened = tokio::task::spawn_blocking(move || {
        let local = Local::open(&dir, &exe)?;
        let gateway = local.gateway()?;
        Ok::<_, drover_local_machines::Error>((local, gateway))
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

/// Serves on the gateway of the local machines, and again after their holder was restarted.
async fn serve_gateway(local: Local, port: Port) {
    let stop = port.stop().clone();
    while !stop.is_cancelled() {
        let opening = local.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let watch = opening.watch()?;
            let listener = opening.listen(GATEWAY_PORT)?;
            Ok::<_, drover_local_machines::Error>((watch, listener))
        });
        let (watch, listener) = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to serve on the gateway of the local machines");
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
        let ended = tokio::task::spawn_blocking(move || watch.wait());
        let server = tokio::spawn(port.clone().serve(listener, serving.clone()));
        tokio::select! {
            () = stop.cancelled() => {
                let _ = server.await;
                return;
            }
            _ = ended => {
                tracing::warn!("the holder of the local machines has ended; restarting it");
                serving.cancel();
            }
        }
    }
}
