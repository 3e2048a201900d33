//! What an installer image and systemd do on a machine: the simulated K3s is started as a unit, and restarted when its
//! restart stamp has changed.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use drover_agent::host::{Attr, BoxFuture, BoxIo, Exec, Exit, Host as _, MemoryHost, Program, Sink, Source};
use drover_sim::config::Role;
use drover_sim::node::{self, NodeOptions};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::CancellationToken;

use crate::wire::Wire;

/// `RestartSec` of the unit.
const RESTART_PAUSE: Duration = Duration::from_secs(2);
const DIAL_LIMIT: Duration = Duration::from_secs(10);
const PRIVATE: Attr = Attr { mode: 0o600, owner: None };

/// The programs of one machine. Clones share it.
#[derive(Clone)]
pub(crate) struct K3s {
    inner: Arc<Inner>,
}

struct Inner {
    /// Where the machine's `/` is for programs that know only real files.
    root: PathBuf,
    hostname: String,
    /// Loopback is a /8: every machine has an address of its own there, so that ports can be K3s' own.
    address: IpAddr,
    /// The machine, for whose power its connections last.
    host: OnceLock<Weak<MemoryHost>>,
    unit: Mutex<Option<Unit>>,
    /// What systemd starts when the machine is switched on: role and version.
    enabled: parking_lot::Mutex<Option<(Role, String)>>,
}

/// A unit that systemd keeps running.
struct Unit {
    role: Role,
    stop: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl K3s {
    pub(crate) fn new(root: &Path, hostname: &str, address: IpAddr) -> Self {
        let inner = Inner {
            root: root.to_owned(),
            hostname: hostname.into(),
            address,
            host: OnceLock::new(),
            unit: Mutex::default(),
            enabled: Default::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Says whose programs they are.
    pub(crate) fn belongs_to(&self, host: &Arc<MemoryHost>) {
        self.inner.host.set(Arc::downgrade(host)).unwrap();
    }

    /// Starts what is enabled.
    pub(crate) async fn boot(&self) {
        let mut unit = self.inner.unit.lock().await;
        if let Some((role, version)) = self.inner.enabled.lock().clone() {
            *unit = Some(self.start(role, &version));
        }
    }

    /// `systemctl stop`.
    pub(crate) async fn stop(&self) {
        stop(&mut *self.inner.unit.lock().await).await;
    }

    /// `run.sh` of the installer image that lies in the working directory.
    async fn install(&self, host: &MemoryHost, exec: &Exec) -> io::Result<()> {
        let env =
            |name: &str| exec.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let script = String::from_utf8(host.read(&exec.dir.join("run.sh"))?).map_err(io::Error::other)?;
        let version = script.lines().find_map(|line| line.strip_prefix("version='")?.strip_suffix('\''));
        let version = version.ok_or_else(|| io::Error::other("run.sh names no version"))?;
        let role = if env("INSTALL_K3S_EXEC") == Some("agent") { Role::Agent } else { Role::Server };
        let data = PathBuf::from(env("K3S_DATA_DIR").unwrap_or("/var/lib/rancher/k3s"));
        let (stamp_file, stamp) = (data.join("restart_stamp"), env("RESTART_STAMP").unwrap_or_default());

        let mut unit = self.inner.unit.lock().await;
        let unchanged = host.read(&stamp_file).is_ok_and(|known| known == stamp.as_bytes());
        if unchanged && unit.as_ref().is_some_and(|unit| unit.role == role) {
            return Ok(());
        }
        *self.inner.enabled.lock() = Some((role, version.to_owned()));
        stop(&mut unit).await;
        *unit = Some(self.start(role, version));
        host.make_dirs(&data, 0o755)?;
        host.replace(&stamp_file, stamp.as_bytes(), PRIVATE)
    }

    /// A node is a program of its own, so it gets a thread and a runtime of its own.
    fn start(&self, role: Role, version: &str) -> Unit {
        let options = NodeOptions {
            role,
            version: version.into(),
            flags: vec![],
            root: self.inner.root.clone(),
            hostname: self.inner.hostname.clone(),
            address: Some(self.inner.address),
            only_address: true,
        };
        let stop = CancellationToken::new();
        let (ending, ended) = oneshot::channel();
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async {
                while !stopped.is_cancelled() {
                    if let Err(error) = node::run(options.clone(), || {}, stopped.clone()).await {
                        tracing::warn!(node = options.hostname, %error, "k3s ended");
                        tokio::select! {
                            () = stopped.cancelled() => {}
                            () = tokio::time::sleep(RESTART_PAUSE) => {}
                        }
                    }
                }
            });
            drop(runtime);
            let _ = ending.send(());
        });
        Unit { role, stop, ended }
    }
}

async fn stop(unit: &mut Option<Unit>) {
    if let Some(Unit { stop, ended, .. }) = unit.take() {
        stop.cancel();
        // A thread that broke off has ended too.
        let _ = ended.await;
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
            // Each machine has a loopback of its own.
            let host = match host {
                "localhost" | "127.0.0.1" | "[::1]" => self.inner.address.to_string(),
                other => other.to_owned(),
            };
            let stream = tokio::time::timeout(DIAL_LIMIT, TcpStream::connect((host.as_str(), port))).await;
            let stream = stream.map_err(|_| io::ErrorKind::TimedOut)??;
            let host = self.inner.host.get().cloned().unwrap_or_default();
            Ok(Box::new(Wire::new(stream, host)) as BoxIo)
        })
    }
}
