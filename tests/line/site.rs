//! The management plane of a test, and its machines.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::{Credential, Pki, ServingCertificate, kubeconfig};
use drover_apiserver::http::ApiService;
use drover_apiserver::storage::{MemoryStorage, Storage};
use drover_runtime::fault::{Fault, Faulty, Plan};
use drover_runtime::{Caches, in_process_client};
use drover_server::DataDir;
use drover_server::backend::Backing;
use drover_server::drivers::Builtin;
use drover_server::plane::{Plane, PlaneOptions};
use drover_sim_fleet::jobs::{Runner, RunnerOptions};
use drover_sim_fleet::network::some_address;
use drover_sim_fleet::{Datacenter, Disk, Network};
use drover_testkit::SOON;
use drover_testkit::objects::Objects;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What remains when the management plane is killed.
pub(crate) struct Site {
    pub(crate) objects: Arc<Objects>,
    pub(crate) datacenter: Arc<Datacenter>,
    storage: Arc<dyn Storage>,
    pki: Arc<Pki>,
    address: SocketAddr,
    client: Arc<Mutex<Option<Client>>>,
    downstream: OnceCell<Client>,
    /// Stops the Job runner.
    jobs: Mutex<CancellationToken>,
    power: JoinHandle<()>,
    data_dir: tempfile::TempDir,
    _disks: tempfile::TempDir,
}

pub(crate) const VERSIONS: [&str; 3] = ["v1.34.1+k3s1", "v1.34.2+k3s1", "v1.35.0+k3s1"];
pub(crate) const IMAGE_PREFIX: &str = "rancher/system-agent-installer-";
/// Interval between checks for machines without power.
const LOOK: Duration = Duration::from_millis(20);

impl Site {
    /// Everything, with a management plane whose controllers may have a fault.
    pub(crate) async fn start(faults: Option<Arc<Plan>>) -> (Self, Manager) {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let client: Arc<Mutex<Option<Client>>> = Arc::default();
        let current = client.clone();
        let objects = Arc::new(Objects::new(move || current.lock().clone().expect("the plane was started")));
        let disks = tempfile::tempdir().unwrap();
        let network = Arc::new(Network::default());
        let datacenter =
            Datacenter::open(disks.path(), Disk::Volatile, network, IMAGE_PREFIX, &VERSIONS).unwrap();
        let datacenter = Arc::new(datacenter);
        let machines = datacenter.clone();
        let power = tokio::spawn(async move {
            loop {
                machines.restore_power().await;
                tokio::time::sleep(LOOK).await;
            }
        });
        let site = Self {
            objects,
            datacenter,
            storage: Arc::new(MemoryStorage::new()),
            pki: Arc::new(Pki::in_memory(jiff::Timestamp::now()).unwrap()),
            // An own address, so that the port is free for the next manager.
            address: SocketAddr::new(some_address(), 8443),
            client,
            downstream: OnceCell::new(),
            jobs: Mutex::default(),
            power,
            data_dir: tempfile::tempdir().unwrap(),
            _disks: disks,
        };
        let manager = site.manager(faults).await;
        (site, manager)
    }

    /// Starts a management plane on the state of the previous one.
    pub(crate) async fn manager(&self, faults: Option<Arc<Plan>>) -> Manager {
        self.patient_manager(faults, Duration::ZERO).await
    }

    /// The same, with time for connected clusters to reconnect.
    pub(crate) async fn patient_manager(&self, faults: Option<Arc<Plan>>, patience: Duration) -> Manager {
        let faults = faults.unwrap_or_else(|| Plan::new(Fault::Lost, 0));
        let names = [self.address.ip().to_string()];
        let pair = self.pki.serving(&names, jiff::Timestamp::now()).unwrap();
        let url = format!("https://{}", self.address);
        let data_dir = DataDir::open(self.data_dir.path()).unwrap();
        let options = PlaneOptions {
            api: Backing::Embedded(self.storage.clone()),
            pki: self.pki.clone(),
            serving: ServingCertificate::new(&pair).unwrap(),
            url: url.clone(),
            server_url: url,
            drivers: Arc::new(Builtin::new(&data_dir, &std::env::current_exe().unwrap())),
            install_script: drover_agent::INSTALL_SCRIPT.into(),
            assets: [].into(),
            images: data_dir.registry(),
            patience,
        };
        let (current, address) = (self.client.clone(), self.address);
        let connect = move |api: ApiService| {
            let own = in_process_client(api.clone(), UserInfo::system_masters("test"));
            *current.lock() = Some(own);
            in_process_client(Faulty::new(api, faults), UserInfo::system_masters("system:drover"))
        };
        let start = move || {
            let runtime = Runtime::new().unwrap();
            let plane = runtime.block_on(async {
                let plane = Plane::start_with(options, connect).await.unwrap();
                plane.serve(TcpListener::bind(address).await.unwrap());
                plane
            });
            Manager { plane, runtime }
        };
        let manager = tokio::task::spawn_blocking(start).await.unwrap();
        self.run_jobs();
        manager
    }

    /// Runs Jobs with the client of the current management plane.
    fn run_jobs(&self) {
        let stop = CancellationToken::new();
        std::mem::replace(&mut *self.jobs.lock(), stop.clone()).cancel();
        let options = RunnerOptions { driver: "local".into(), managed_by: "drover.io/job-runner".into() };
        let (client, machines) = (self.objects.client(), self.datacenter.clone());
        tokio::spawn(async move {
            let caches = Caches::new(client, stop.clone());
            Runner::run(options, &caches, machines, stop).await;
        });
    }

    /// A client of the port that works across replacements of the management plane, and the port's address.
    pub(crate) async fn admin(&self) -> (Client, String) {
        let url = format!("https://{}", self.address);
        let admin = self.pki.admin(jiff::Timestamp::now()).unwrap();
        let credential = Credential::ClientCertificate(&admin);
        let text = kubeconfig("drover", &url, self.pki.ca_pem(), "admin", credential);
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text).unwrap(), &options).await;
        (Client::try_from(config.unwrap()).unwrap(), url)
    }

    /// The downstream cluster for its owner: with its kubeconfig, through proxy and tunnel.
    pub(crate) async fn downstream(&self) -> Client {
        self.downstream.get_or_init(|| self.connect()).await.clone()
    }

    async fn connect(&self) -> Client {
        let secret = self.objects.get("v1", "Secret", "default", "demo-kubeconfig").await.unwrap();
        let kubeconfig = STANDARD.decode(secret["data"]["value"].as_str().unwrap()).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(std::str::from_utf8(&kubeconfig).unwrap()).unwrap();
        let options = KubeConfigOptions::default();
        Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
    }

    pub(crate) async fn nodes(&self) -> Vec<Node> {
        let api: Api<Node> = Api::all(self.downstream().await);
        api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default()
    }

    /// The end of a test: stops everything.
    pub(crate) async fn close(self, manager: Manager) {
        self.jobs.lock().cancel();
        self.power.abort();
        self.datacenter.close().await;
        manager.stop().await;
    }
}

/// A running management plane with its own runtime.
pub(crate) struct Manager {
    plane: Plane,
    runtime: Runtime,
}

impl Manager {
    /// Stops as after a signal.
    async fn stop(self) {
        self.runtime.spawn(self.plane.stop()).await.unwrap();
        end(self.runtime).await;
    }

    /// Ends as after `kill -9`: running work is lost and connections break.
    pub(crate) async fn kill(self) {
        end(self.runtime).await;
    }
}

async fn end(runtime: Runtime) {
    tokio::task::spawn_blocking(move || runtime.shutdown_timeout(SOON)).await.unwrap();
}
