//! Replaces the installer image and systemd on a machine: starts the simulated K3s as a unit, and restarts it when its
//! restart stamp has changed.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::host::{Attr, BoxFuture, BoxIo, Exec, Exit, Host as _, MemoryHost, Program, Sink, Source};
use drover_sim::config::Role;
use drover_sim::node::{self, NodeOptions};
use drover_sim::server::Datastore;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::network::Network;

/// `RestartSec` of the unit.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
const PRIVATE: Attr = Attr { mode: 0o600, owner: None };
/// The unit that is started when the machine is switched on, below the machine's root.
const UNIT_FILE: &str = "unit.json";

/// The programs of one machine. Clones share their state.
#[derive(Clone)]
pub(crate) struct K3s {
    inner: Arc<Inner>,
}

struct Inner {
    /// The root of the machine's files, for programs that use real files.
    root: PathBuf,
    hostname: String,
    address: IpAddr,
    network: Arc<Network>,
    unit: Mutex<Option<Unit>>,
}

/// The installed unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct UnitFile {
    agent: bool,
    version: String,
}

/// A unit that is restarted when it exits.
struct Unit {
    agent: bool,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl K3s {
    pub(crate) fn new(root: &Path, hostname: &str, address: IpAddr, network: Arc<Network>) -> Self {
        let (root, hostname) = (root.to_owned(), hostname.to_owned());
        Self { inner: Arc::new(Inner { root, hostname, address, network, unit: Mutex::default() }) }
    }

    /// Starts the installed unit.
    pub(crate) async fn boot(&self) {
        let mut unit = self.inner.unit.lock().await;
        let installed = std::fs::read(self.inner.root.join(UNIT_FILE)).ok();
        if let Some(file) = installed.and_then(|text| serde_json::from_slice(&text).ok()) {
            *unit = Some(self.start(&file));
        }
    }

    /// `systemctl stop`.
    pub(crate) async fn stop(&self) {
        stop(&mut *self.inner.unit.lock().await).await;
    }

    /// Runs `run.sh` of the installer image in the working directory.
    async fn install(&self, host: &MemoryHost, exec: &Exec) -> io::Result<()> {
        let env =
            |name: &str| exec.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let script = String::from_utf8(host.read(&exec.dir.join("run.sh"))?).map_err(io::Error::other)?;
        let version = script.lines().find_map(|line| line.strip_prefix("version='")?.strip_suffix('\''));
        let version = version.ok_or_else(|| io::Error::other("run.sh does not set version"))?;
        let file = UnitFile { agent: env("INSTALL_K3S_EXEC") == Some("agent"), version: version.to_owned() };
        let data = PathBuf::from(env("K3S_DATA_DIR").unwrap_or("/var/lib/rancher/k3s"));
        let (stamp_file, stamp) = (data.join("restart_stamp"), env("RESTART_STAMP").unwrap_or_default());

        let mut unit = self.inner.unit.lock().await;
        let unchanged = host.read(&stamp_file).is_ok_and(|known| known == stamp.as_bytes());
        if unchanged && unit.as_ref().is_some_and(|unit| unit.agent == file.agent) {
            return Ok(());
        }
        stop(&mut unit).await;
        std::fs::write(self.inner.root.join(UNIT_FILE), serde_json::to_vec(&file)?)?;
        *unit = Some(self.start(&file));
        host.make_dirs(&data, 0o755)?;
        host.replace(&stamp_file, stamp.as_bytes(), PRIVATE)
    }

    fn start(&self, file: &UnitFile) -> Unit {
        let options = NodeOptions {
            role: if file.agent { Role::Agent } else { Role::Server },
            version: file.version.clone(),
            flags: vec![],
            root: self.inner.root.clone(),
            hostname: self.inner.hostname.clone(),
            address: Some(self.inner.address),
            only_address: true,
            datastore: Datastore::Journal,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_running(options, stop.clone()));
        Unit { agent: file.agent, stop, task }
    }
}

async fn keep_running(options: NodeOptions, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Err(error) = node::run(options.clone(), || {}, stop.clone()).await {
            tracing::warn!(node = options.hostname, %error, "k3s ended");
            tokio::select! {
                () = stop.clone().cancelled_owned() => {}
                () = tokio::time::sleep(RESTART_PAUSE) => {}
            }
        }
    }
}

async fn stop(unit: &mut Option<Unit>) {
    if let Some(Unit { stop, task, .. }) = unit.take() {
        stop.cancel();
        if let Err(error) = task.await {
            tracing::error!(%error, "k3s failed");
        }
    }
}

impl Program for K3s {
    fn run<'a>(
        &'a self,
        host: &'a MemoryHost,
        exec: &'a Exec,
        sink: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        Box::pin(async move {
            if exec.program != "sh" || exec.args != ["-c", "run.sh"] {
                sink.write(Source::Stderr, format!("{}: not found\n", exec.program).as_bytes());
                return Ok(Exit::Code(127));
            }
            match self.install(host, exec).await {
                Ok(()) => Ok(Exit::Code(0)),
                Err(error) => {
                    sink.write(Source::Stderr, format!("{error}\n").as_bytes());
                    Ok(Exit::Code(1))
                }
            }
        })
    }

    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        Box::pin(async move {
            let stream = self.inner.network.dial(self.inner.address, host, port).await?;
            Ok(Box::new(stream) as BoxIo)
        })
    }
}
