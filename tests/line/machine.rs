//! A machine: a disk and programs in memory, the install script's effect, then the real agent until the power goes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use drover_agent::cluster_agent::{ADMIN_KUBECONFIGS, ClusterAgent};
use drover_agent::config::Config;
use drover_agent::host::{Attr, Host as _, MemoryHost};
use drover_agent::sentinel::Sentinel;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bootstrap::{self, Order};
use crate::k3s::K3s;

/// The folders that the simulated K3s shares with the agent.
const SHARED: [&str; 3] = ["/etc/rancher/k3s", "/etc/rancher/node", "/var/lib/rancher/k3s"];
const VERSIONS: [&str; 3] = ["v1.34.1+k3s1", "v1.34.2+k3s1", "v1.35.0+k3s1"];
/// `RestartSec` of the agent's unit is longer; tests are not patient.
const AGENT_RESTART: Duration = Duration::from_millis(200);

pub(crate) struct Machine {
    pub(crate) address: IpAddr,
    pub(crate) host: Arc<MemoryHost>,
    k3s: K3s,
    order: Order,
    running: Option<(CancellationToken, JoinHandle<()>)>,
    /// The disk, as far as it is real.
    _root: tempfile::TempDir,
}

impl Machine {
    /// A new machine that runs the install script when it is switched on.
    pub(crate) fn new(hostname: &str, order: Order) -> Self {
        let root = tempfile::tempdir().unwrap();
        let address = some_address();
        let k3s = K3s::new(root.path(), hostname, address);
        let mut host = MemoryHost::new(jiff::Timestamp::now(), rand::random(), k3s.clone());
        for path in SHARED {
            host = host.with_volume(path, root.path());
        }
        let images = Path::new("/var/lib/rancher/agent/images");
        host.make_dirs(images, 0o755).unwrap();
        host.replace(&images.join("k3s.tar"), installer_images(), Attr { mode: 0o644, owner: None }).unwrap();
        let host = Arc::new(host);
        k3s.belongs_to(&host);
        Self { address, host, k3s, order, running: None, _root: root }
    }

    /// Starts what was installed, runs the script if it has not been run, and then the agent.
    pub(crate) async fn power_on(&mut self) {
        self.host.restart();
        self.k3s.boot().await;
        let stop = CancellationToken::new();
        let life = live(self.host.clone(), self.order.clone(), stop.clone());
        self.running = Some((stop, tokio::spawn(life)));
    }

    /// Ends everything that runs. The disk stays.
    pub(crate) async fn power_off(&mut self) {
        if let Some((stop, life)) = self.running.take() {
            stop.cancel();
            life.await.unwrap();
        }
        self.k3s.stop().await;
    }
}

async fn live(host: Arc<MemoryHost>, order: Order, stop: CancellationToken) {
    let booted = async {
        if host.stat(Path::new(bootstrap::CONFIG)).is_err() {
            bootstrap::run(&host, &order).await;
        }
        loop {
            match agent(&host) {
                Ok(sentinel) => break sentinel,
                Err(error) => tracing::warn!(error, "the agent does not start"),
            }
            tokio::time::sleep(AGENT_RESTART).await;
        }
    };
    let sentinel = tokio::select! {
        () = stop.cancelled() => return,
        sentinel = booted => sentinel,
    };
    sentinel.run(stop.cancelled()).await;
}

/// `drover-agent sentinel`.
fn agent(host: &Arc<MemoryHost>) -> Result<Sentinel, String> {
    let config = Config::load(&**host, Path::new(bootstrap::CONFIG)).map_err(|error| error.to_string())?;
    let connection = config.connection_info_file.clone();
    let mut sentinel = Sentinel::start(host.clone(), config, true).map_err(|error| error.to_string())?;
    let kubeconfigs = ADMIN_KUBECONFIGS.iter().map(PathBuf::from).collect();
    let tunnel = ClusterAgent::new(sentinel.host(), sentinel.board(), kubeconfigs, connection, true)
        .reporting_to(sentinel.cluster_ca());
    sentinel.join("tunnel", tunnel.run());
    Ok(sentinel)
}

/// Nobody else has it: there are four million.
pub(crate) fn some_address() -> IpAddr {
    let [a, b, c] = rand::random::<[u8; 3]>();
    Ipv4Addr::new(127, 64 | (a >> 2), b, c.clamp(1, 254)).into()
}

/// The archive with the installer images, as the server would put it there.
fn installer_images() -> &'static [u8] {
    static ARCHIVE: OnceLock<Vec<u8>> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let (program, archive) = (dir.path().join("k3s"), dir.path().join("k3s.tar"));
        std::fs::write(&program, "the test runs it in a thread").unwrap();
        let prefix = "rancher/system-agent-installer-";
        drover_sim::install::write_image(&archive, &program, prefix, &VERSIONS).unwrap();
        std::fs::read(archive).unwrap()
    })
}
