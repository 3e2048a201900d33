//! The client. Every call is one request to the holder; it starts the holder if necessary.
//!
//! Reading state and powering off do not start a holder: without a holder no machine is running, and the records on
//! disk are complete. All calls block; async code must use a blocking task.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;

use crate::{
    cgroup,
    error::{At, Error, Result},
    layout::{Layout, private_dir, remove_tree},
    protocol::{CreateOptions, HolderInfo, MachineInfo, Reply, Request},
    records, wire,
};

/// The holder answers lists immediately and boots a machine within a second. The limit is for a host that is swapping.
const REPLY_TIMEOUT: Duration = Duration::from_secs(180);
/// Another client may be starting the holder at the same time.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of attempts. A holder that exits during a call is replaced by another one; if every holder exits, the
/// call fails.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit for stopping a machine's units at power-off before process 1 is killed.
const GRACE: Duration = Duration::from_secs(15);

/// The local machines of one data directory.
#[derive(Debug, Clone)]
pub struct Local {
    layout: Layout,
    exe: PathBuf,
}

impl Local {
    /// Opens the data directory and starts its holder if it is not running.
    ///
    /// `exe` is the executable whose hidden subcommands are this crate's entry points. Fails with
    /// [`Error::Unsupported`] if the host or the data directory does not support local machines; the text says what to
    /// do.
    pub fn open(data_dir: &Path, exe: &Path) -> Result<Local> {
        let local = Local::attach(data_dir, exe)?;
        local.hello()?;
        Ok(local)
    }

    /// Like [`Local::open`], but does not start the holder until a call needs it.
    pub fn attach(data_dir: &Path, exe: &Path) -> Result<Local> {
        let absolute = std::path::absolute(data_dir).at("find", data_dir)?;
        Ok(Local { layout: Layout::new(&absolute), exe: exe.to_owned() })
    }

    /// Returns information about the holder.
    pub fn hello(&self) -> Result<HolderInfo> {
        self.call(&Request::Hello)
    }

    /// Creates and boots a machine, or adopts the machine with that name (see [`CreateOptions::uid`]) and boots it if
    /// it is not running. Can be interrupted at any point and repeated. Returns when process 1 is up; the install
    /// script may still be running.
    pub fn create(&self, name: &str, options: &CreateOptions) -> Result<MachineInfo> {
        self.call(&Request::Create { name: name.to_owned(), options: options.clone() })
    }

    /// Removes a machine with its processes, mounts, network and disk. Returns false if it does not exist.
    pub fn rm(&self, name: &str) -> Result<bool> {
        let request = Request::Remove { name: name.to_owned() };
        self.call_running(&request, || match records::machine(&self.layout, name) {
            Err(Error::NotFound(_)) => Ok(false),
            _ => self.call(&request),
        })
    }

    /// Boots a machine if it is not running.
    pub fn start(&self, name: &str) -> Result<MachineInfo> {
        self.call(&Request::Start { name: name.to_owned() })
    }

    /// Powers a machine off and keeps its disk. Units are stopped first, for at most 15 seconds.
    pub fn stop(&self, name: &str) -> Result<MachineInfo> {
        let request = Request::Stop { name: name.to_owned(), grace_seconds: GRACE.as_secs() };
        self.call_running(&request, || records::machine(&self.layout, name))
    }

    /// Kills process 1 of a machine without stopping its units. Keeps the disk.
    pub fn kill(&self, name: &str) -> Result<MachineInfo> {
        let request = Request::Kill { name: name.to_owned() };
        self.call_running(&request, || records::machine(&self.layout, name))
    }

    /// All machines, sorted by name. Does not start a holder.
    pub fn list(&self) -> Result<Vec<MachineInfo>> {
        self.call_running(&Request::List, || records::machines(&self.layout))
    }

    /// Whether there are any machines. Does not start a holder.
    pub fn has_machines(&self) -> bool {
        fs::read_dir(self.layout.machines()).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// One machine. Does not start a holder.
    pub fn inspect(&self, name: &str) -> Result<MachineInfo> {
        let request = Request::Inspect { name: name.to_owned() };
        self.call_running(&request, || records::machine(&self.layout, name))
    }

    /// The log of process 1 of a machine during its boot.
    pub fn console_log(&self, name: &str) -> PathBuf {
        self.layout.machine(name).console()
    }

    /// The address at which machines reach the sockets of [`Local::listen`]. It is recorded and never changes for a
    /// data directory, so it can be used in a certificate.
    pub fn gateway(&self) -> Result<IpAddr> {
        Ok(self.hello()?.gateway.into())
    }

    /// Returns a socket that listens on the gateway address in the machines' network. Port 0 selects a free port. The
    /// socket belongs to the network of this holder: after [`HolderWatch::wait`] returns, open a new one.
    pub fn listen(&self, port: u16) -> Result<TcpListener> {
        self.call_for_fd(&Request::Listen { port }).map(TcpListener::from)
    }

    /// Connects to a machine from inside the machines' network.
    pub fn dial(&self, address: SocketAddr, timeout: Duration) -> Result<TcpStream> {
        let timeout_ms = timeout.as_millis().try_into().unwrap_or(u64::MAX);
        self.call_for_fd(&Request::Dial { address, timeout_ms }).map(TcpStream::from)
    }

    /// Watches for the end of the holder, which ends all machines and closes all sockets of [`Local::listen`].
    pub fn watch(&self) -> Result<HolderWatch> {
        let stream = self.connect()?;
        let info = ask(&stream, &Request::Hello).and_then(|(value, _)| decode(value))?;
        stream.set_read_timeout(None).map_err(lost)?;
        Ok(HolderWatch { stream, info })
    }

    /// Powers off every machine, keeps the disks and ends the holder. Succeeds if no holder is running.
    pub fn shutdown_all(&self) -> Result<()> {
        let request = Request::Shutdown { grace_seconds: GRACE.as_secs() };
        self.end_holder(&request).map(drop)
    }

    /// Removes all machines and everything that belongs to them: no process, mount, file or address remains.
    pub fn destroy(&self) -> Result<()> {
        self.end_holder(&Request::Destroy)?;
        // If the holder had already ended, its files and control groups remain, unused.
        for entry in std::fs::read_dir(self.layout.machines()).into_iter().flatten().flatten() {
            cgroup::remove_recorded(&self.layout.machine(&entry.file_name().to_string_lossy()).cgroups());
        }
        remove_tree(self.layout.root())
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn end_holder(&self, request: &Request) -> Result<()> {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let pid = loop {
            let Ok(stream) = self.connect_running() else { return Ok(()) };
            let asked = ask(&stream, &Request::Hello)
                .and_then(|(value, _)| decode::<HolderInfo>(value))
                .and_then(|info| ask(&stream, request).map(|_| info.pid));
            match asked {
                Ok(pid) => break pid,
                // It was already ending and will stop answering.
                Err(error) if is_hangup(&error) && Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        };
        // It has answered and is ending.
        while alive(pid) {
            if Instant::now() > deadline {
                return Err(Error::Holder(format!("process {pid} did not end")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Sends a request. If the holder ends during the call, starts a new one and repeats the request, which is always
    /// safe.
    fn request(&self, request: &Request) -> Result<(serde_json::Value, Vec<OwnedFd>)> {
        for _ in 1..TRIES {
            match ask(&self.connect()?, request) {
                Err(error) if is_hangup(&error) => std::thread::sleep(PAUSE),
                other => return other,
            }
        }
        ask(&self.connect()?, request)
    }

    fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        self.request(request).and_then(|(value, _)| decode(value))
    }

    /// Sends a request to a running holder. If there is none, or it ends during the call, returns the result of
    /// `without`.
    fn call_running<T: DeserializeOwned>(
        &self,
        request: &Request,
        without: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Ok(stream) = self.connect_running() else { return without() };
        match ask(&stream, request) {
            Err(error) if is_hangup(&error) => without(),
            other => other.and_then(|(value, _)| decode(value)),
        }
    }

    fn call_for_fd(&self, request: &Request) -> Result<OwnedFd> {
        let (_, fds) = self.request(request)?;
        fds.into_iter().next().ok_or_else(|| lost(io::ErrorKind::InvalidData.into()))
    }

    fn connect_running(&self) -> io::Result<UnixStream> {
        let stream = wire::connect(&self.layout.socket())?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(stream)
    }

    fn connect(&self) -> Result<UnixStream> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(stream) = self.connect_running() {
                return Ok(stream);
            }
            self.start_holder()?;
            match self.connect_running() {
                Ok(stream) => return Ok(stream),
                // Another client has the lock and is still starting the holder, or a holder is ending.
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(lost(error)),
            }
        }
    }

    fn start_holder(&self) -> Result<()> {
        if let Some(parent) = self.layout.root().parent() {
            private_dir(parent)?;
        }
        let output = Command::new(&self.exe)
            .arg("machine-holder")
            .arg("--data-dir")
            .arg(self.layout.root().parent().unwrap_or(Path::new("/")))
            .arg("--exe")
            .arg(&self.exe)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .at("run", &self.exe)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(if text.is_empty() { Error::Holder(output.status.to_string()) } else { Error::Unsupported(text) })
    }
}

/// See [`Local::watch`].
#[derive(Debug)]
pub struct HolderWatch {
    stream: UnixStream,
    info: HolderInfo,
}

impl HolderWatch {
    /// Information about the watched holder.
    pub fn info(&self) -> &HolderInfo {
        &self.info
    }

    /// Returns when the holder has ended.
    pub fn wait(self) {
        // The holder never sends anything on its own.
        while let Ok(Some(_)) = wire::recv::<serde_json::Value>(&self.stream) {}
    }
}

fn ask(stream: &UnixStream, request: &Request) -> Result<(serde_json::Value, Vec<OwnedFd>)> {
    wire::send(stream, request, &[]).map_err(lost)?;
    match wire::recv::<Reply>(stream).map_err(lost)? {
        Some((Reply::Value(value), fds)) => Ok((value, fds)),
        Some((Reply::Error(error), _)) => Err(error.into()),
        None => Err(lost(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn decode<T: DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| lost(error.into()))
}

fn lost(source: io::Error) -> Error {
    Error::Connection { peer: "the holder process of the local machines", source }
}

fn is_hangup(error: &Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error, Error::Connection { source, .. } if [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&source.kind()))
}

/// A zombie that its parent has not reaped yet counts as ended, unless other threads of the process are still ending.
fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads > 1 || stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
