//! A machine: its disk, the install script, and the real agent until the power is cut.

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

use crate::bootstrap::{self, Registration};
use crate::k3s::K3s;
use crate::network::Network;

/// Shorter than `RestartSec` of a real agent's unit.
const AGENT_RESTART: Duration = Duration::from_millis(200);
/// The machine's description, below its root.
const DESCRIPTION: &str = "machine.json";
const IMAGES: &str = "var/lib/rancher/agent/images";

/// Which parts of a machine's disk are real files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// All relevant files, so that another process can switch on the machine.
    Kept,
    /// Only the files that K3s and the agent share. The agent's other files are in memory, and unsynced writes are lost
    /// when the power is cut.
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

/// The properties of a machine, as stored on its disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    pub hostname: String,
    pub address: IpAddr,
    pub registration: Registration,
}

impl Description {
    /// Reads the description of the machine whose disk is `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(root.join(DESCRIPTION))?)?)
    }
}

/// A simulated machine.
pub struct Machine {
    pub address: IpAddr,
    pub host: Arc<MemoryHost>,
    root: PathBuf,
    k3s: K3s,
    registration: Registration,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Machine {
    /// Returns a machine that is switched off. Its disk is the directory `root` with its existing files; `image` is the
    /// archive of installer images.
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
        // Written last: a directory without it is an incomplete machine.
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
            registration: description.registration.clone(),
            running: None,
        })
    }

    /// Starts the installed unit, runs the script if it has not completed, and then the agent.
    pub async fn power_on(&mut self) {
        self.host.restart();
        self.k3s.boot().await;
        let stop = CancellationToken::new();
        let run = run_machine(self.host.clone(), self.registration.clone(), stop.clone());
        self.running = Some((stop, tokio::spawn(run)));
    }

    /// Stops everything that is running. The disk is kept.
    pub async fn power_off(&mut self) {
        if let Some((stop, run)) = self.running.take() {
            stop.cancel();
            if let Err(error) = run.await {
                tracing::error!(%error, "an agent failed");
            }
        }
        self.k3s.stop().await;
    }

    /// Switches the machine off and deletes its disk.
    pub async fn destroy(mut self) -> io::Result<()> {
        self.power_off().await;
        std::fs::remove_dir_all(&self.root)
    }
}

async fn run_machine(host: Arc<MemoryHost>, registration: Registration, stop: CancellationToken) {
    let booted = async {
        if host.stat(Path::new(bootstrap::CONFIG)).is_err() {
            bootstrap::run(&host, &registration).await;
        }
        loop {
            match agent(&host) {
                Ok(sentinel) => break sentinel,
                Err(error) => tracing::warn!(error, "the agent failed to start"),
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
