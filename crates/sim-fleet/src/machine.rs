//! A machine: a disk, the install script's effect, then the real agent until the power is cut.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::cluster_agent::{ADMIN_KUBECONFIGS, ClusterAgent};
use drover_agent::config::Config;
use drover_agent::host::{Host as _, MemoryHost};
use drover_agent::sentinel::Sentinel;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bootstrap::{self, Order};
use crate::k3s::K3s;
use crate::network::Network;

/// `RestartSec` of a real agent's unit is longer.
const AGENT_RESTART: Duration = Duration::from_millis(200);
/// The machine's description, below its root.
const DESCRIPTION: &str = "machine.json";
const IMAGES: &str = "var/lib/rancher/agent/images";

/// How much of a machine's disk is real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Everything that matters, so that the machine can be switched on by another process.
    Kept,
    /// Only what K3s and the agent share. What else the agent writes is in memory, and loses what was not waited for when
    /// the power is cut.
    Volatile,
}

impl Disk {
    fn volumes(self) -> &'static [&'static str] {
        match self {
            Self::Kept => &["/etc/rancher", "/var/lib/rancher"],
            Self::Volatile => &[
                "/etc/rancher/k3s",
                "/etc/rancher/node",
                "/var/lib/rancher/k3s",
                "/var/lib/rancher/agent/images",
            ],
        }
    }
}

/// What a machine is made with, as its disk remembers it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    pub hostname: String,
    pub address: IpAddr,
    pub order: Order,
}

impl Description {
    /// Reads the description of the machine whose disk is `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(root.join(DESCRIPTION))?)?)
    }
}

/// See the module.
pub struct Machine {
    pub address: IpAddr,
    pub host: Arc<MemoryHost>,
    root: PathBuf,
    k3s: K3s,
    order: Order,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Machine {
    /// A machine that is switched off. Its disk is the directory `root`, with what is on it; `image` is the archive of
    /// installer images that every machine comes with.
    pub fn new(
        description: &Description,
        root: &Path,
        disk: Disk,
        image: &Path,
        network: Arc<Network>,
    ) -> io::Result<Self> {
        let images = root.join(IMAGES);
        std::fs::create_dir_all(&images)?;
        match std::fs::hard_link(image, images.join("k3s.tar")) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        // Last: a directory without it is no machine.
        if !root.join(DESCRIPTION).exists() {
            std::fs::write(root.join(DESCRIPTION), serde_json::to_vec(description)?)?;
        }
        let k3s = K3s::new(root, &description.hostname, description.address, network);
        let mut host = MemoryHost::new(jiff::Timestamp::now(), rand::random(), k3s.clone());
        for path in disk.volumes() {
            host = host.with_volume(path, root);
        }
        Ok(Self {
            address: description.address,
            host: Arc::new(host),
            root: root.to_owned(),
            k3s,
            order: description.order.clone(),
            running: None,
        })
    }

    /// Starts what was installed, runs the script if it has not been run, and then the agent.
    pub async fn power_on(&mut self) {
        self.host.restart();
        self.k3s.boot().await;
        let stop = CancellationToken::new();
        let life = live(self.host.clone(), self.order.clone(), stop.clone());
        self.running = Some((stop, tokio::spawn(life)));
    }

    /// Ends everything that runs. The disk stays.
    pub async fn power_off(&mut self) {
        if let Some((stop, life)) = self.running.take() {
            stop.cancel();
            if let Err(error) = life.await {
                tracing::error!(%error, "an agent broke off");
            }
        }
        self.k3s.stop().await;
    }

    /// Switches the machine off and throws its disk away.
    pub async fn destroy(mut self) -> io::Result<()> {
        self.power_off().await;
        std::fs::remove_dir_all(&self.root)
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
