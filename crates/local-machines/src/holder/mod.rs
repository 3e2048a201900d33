//! The holder: one process per data directory that owns the namespaces and the machines in them, and continues to run
//! when the manager ends. It serves [`Request`]s on `holder.sock` and serialises them.
//!
//! Threads: the main thread only starts machines, because a machine is killed when the thread that started it ends. One
//! thread accepts connections, each connection has a thread, and each machine has a thread that waits until it exits.
//!
//! The holder exits when no machine is powered on and no client is connected. Clients start it again when they need it.

mod boot;
pub(crate) mod disk;
mod machines;

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::Duration,
};

use nix::{
    sys::stat::{Mode, umask},
    unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, pipe, setsid},
};
use sha2::{Digest, Sha256};

use self::{boot::SpawnRequest, machines::Machines};
use crate::{
    error::{At, Error, Result},
    layout::{Layout, private_dir, read_json, remove_tree, write_json},
    namespace, netlink,
    network::{Network, bring_up_bridge},
    protocol::{HolderInfo, Reply, Request},
    sys::{allow_open_files, enough_open_files, raise_open_files},
    wire,
};

/// Interval for checking that the data directory still exists and that the holder is needed. The holder exits only if
/// it was idle in two checks in a row, because the client that started it may not have connected yet.
const TICK: Duration = Duration::from_secs(5);

/// The limit in the units of K3s and RKE2.
const MACHINE_OPEN_FILES: u64 = 1 << 20;

/// Entry point of `drover machine-holder --data-dir DIR --exe FILE`. Starts the holder in the background and returns 0
/// once it answers (or if another one is running). On failure, prints the error and returns 1.
///
/// Must be called before the process has a second thread: only single-threaded processes can create user namespaces.
pub fn holder_main(args: &[String]) -> i32 {
    match parse(args).and_then(|(data_dir, exe)| start(&data_dir, &exe)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}", error.chain());
            1
        }
    }
}

fn parse(args: &[String]) -> Result<(PathBuf, PathBuf)> {
    match args {
        [flag, data_dir, other, exe] if flag == "--data-dir" && other == "--exe" => {
            Ok((data_dir.into(), exe.into()))
        }
        _ => Err(Error::Invalid("usage: machine-holder --data-dir DIR --exe FILE".into())),
    }
}

fn start(data_dir: &Path, exe: &Path) -> Result<()> {
    // The caller may have a lower limit than the holder needs for all its machines.
    raise_open_files();
    enough_open_files()?;
    // The holder changes its directory to /, so the path must be absolute.
    let layout = Layout::new(&std::path::absolute(data_dir).at("find", data_dir)?);
    private_dir(layout.root())?;
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(layout.lock())
        .at("open", layout.lock())?;
    // Locked until the process exits for whatever reason, which prevents a second holder. The child shares the lock, so
    // this process must only close the file when it returns, and never unlock it.
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error).at("lock", layout.lock()),
    }
    let (mut read, write) =
        pipe().map(|(read, write)| (File::from(read), File::from(write))).at("create", "a pipe")?;
    match crate::sys::fork().at("start", "the holder")? {
        ForkResult::Parent { .. } => {
            drop(write);
            let mut outcome = String::new();
            read.read_to_string(&mut outcome).at("read from", "the holder")?;
            match outcome.as_str() {
                "ready" => Ok(()),
                "" => Err(Error::Holder(format!("it exited early, see {}", layout.log().display()))),
                other => Err(Error::Unsupported(other.to_owned())),
            }
        }
        ForkResult::Child => {
            drop(read);
            std::process::exit(hold(&layout, exe, &lock, write));
        }
    }
}

/// Runs the holder in its own session.
fn hold(layout: &Layout, exe: &Path, lock: &File, mut ready: File) -> i32 {
    let outcome = detach(layout).and_then(|()| set_up(layout, exe));
    let (holder, spawns) = match outcome {
        Ok(made) => made,
        Err(error) => {
            let _ = ready.write_all(error.chain().as_bytes());
            return 1;
        }
    };
    log(&format!("holder {} is ready, gateway {}", holder.info.instance, holder.info.gateway));
    let _ = ready.write_all(b"ready");
    drop(ready);
    main_thread(&holder, lock, &spawns);
    0
}

fn detach(layout: &Layout) -> Result<()> {
    // The process was just forked and is not a group leader, so this cannot fail.
    let _ = setsid();
    umask(Mode::from_bits_truncate(0o022));
    std::env::set_current_dir("/").at("change to", "/")?;
    let log = File::options().create(true).append(true).open(layout.log()).at("open", layout.log())?;
    let null = File::open("/dev/null").at("open", "/dev/null")?;
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&log))
        .and_then(|()| dup2_stderr(&log))
        .at("redirect", "output")
}

fn set_up(layout: &Layout, exe: &Path) -> Result<(Arc<Holder>, Receiver<SpawnRequest>)> {
    // The host's routes must be read before leaving the host's network namespace.
    let network = choose_network(layout)?;
    allow_open_files(MACHINE_OPEN_FILES);
    let only_root = namespace::enter()?;
    namespace::probe_disk(layout.root(), &layout.probe())?;
    bring_up_bridge(&network).map_err(|error| {
        Error::Unsupported(format!(
            "local machines need a bridge in a network namespace, which this kernel refuses ({error}); load the \
             modules bridge and veth as root (`modprobe bridge veth`) and try again"
        ))
    })?;
    copy_exe(layout, exe)?;
    private_dir(&layout.machines())?;
    remove_tree(&layout.trash())?;
    let info = HolderInfo {
        pid: std::process::id(),
        instance: uuid::Uuid::new_v4().to_string(),
        gateway: network.gateway,
        prefix: network.prefix,
        only_root,
    };
    let listener = wire::listen(&layout.socket()).at("listen on", layout.socket())?;
    let (sender, spawns) = channel();
    let machines = Machines::load(layout.clone(), network, only_root, sender)?;
    let holder =
        Arc::new(Holder { layout: layout.clone(), info, machines, connections: AtomicUsize::new(0) });
    let serving = holder.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let holder = serving.clone();
            holder.connections.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                holder.serve(&stream);
                holder.connections.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    Ok((holder, spawns))
}

fn choose_network(layout: &Layout) -> Result<Network> {
    if let Some(recorded) = read_json(&layout.network())? {
        return Ok(recorded);
    }
    let routes = netlink::Netlink::open().and_then(|mut it| it.routes()).unwrap_or_default();
    let seed = Sha256::digest(layout.root().as_os_str().as_encoded_bytes())[0];
    let network = Network::choose(seed, &routes).ok_or_else(|| {
        Error::Unsupported(
            "all networks in 10.200.0.0–10.215.255.255 overlap with routes of the host; local machines need one of them".into(),
        )
    })?;
    write_json(&layout.network(), &network)?;
    Ok(network)
}

/// Copies the executable: machines continue to run this version after the file on the host was replaced.
fn copy_exe(layout: &Layout, exe: &Path) -> Result<()> {
    let target = layout.exe();
    let next = target.with_extension("next");
    if let Some(parent) = target.parent() {
        private_dir(parent)?;
    }
    let _ = fs::remove_file(&next);
    if fs::hard_link(exe, &next).is_err() {
        // A partial copy would waste the last free blocks of a full disk.
        fs::copy(exe, &next)
            .inspect_err(|_| drop(fs::remove_file(&next)))
            .at("copy the executable to", &next)?;
    }
    fs::rename(&next, &target).at("replace", &target)
}

/// Starts machines on request until the data directory is deleted or the holder is idle.
fn main_thread(holder: &Holder, lock: &File, spawns: &Receiver<SpawnRequest>) {
    let layout = &holder.layout;
    let ours = lock.metadata().map(|meta| meta.ino()).ok();
    let mut idle = false;
    loop {
        match spawns.recv_timeout(TICK) {
            Ok(request) => {
                idle = false;
                request.run();
            }
            Err(RecvTimeoutError::Timeout) => {
                if fs::metadata(layout.lock()).map(|meta| meta.ino()).ok() != ours {
                    log("exiting, and all machines with it: the data directory was deleted");
                    return;
                }
                let was_idle = std::mem::replace(&mut idle, holder.is_idle());
                if was_idle && idle {
                    log("exiting: no machine is powered on and no client is connected");
                    // A client that connects at this moment is disconnected and starts a new holder.
                    let _ = fs::remove_file(layout.socket());
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Holder {
    layout: Layout,
    info: HolderInfo,
    machines: Arc<Machines>,
    /// Clients that use a socket of this holder, or watch it, stay connected.
    connections: AtomicUsize,
}

impl Holder {
    fn is_idle(&self) -> bool {
        self.connections.load(Ordering::SeqCst) == 0 && self.machines.without_power()
    }

    fn serve(&self, stream: &UnixStream) {
        while let Ok(Some((request, _))) = wire::recv::<Request>(stream) {
            let last = matches!(request, Request::Shutdown { .. } | Request::Destroy);
            let (reply, fd) = match self.handle(request) {
                Ok((value, fd)) => (Reply::Value(value), fd),
                Err(error) => (Reply::Error(error.into()), None),
            };
            let done = last && matches!(reply, Reply::Value(_));
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let sent = wire::send(stream, &reply, &fds);
            if done {
                log("exiting: a client requested it");
                std::process::exit(0);
            }
            if sent.is_err() {
                return;
            }
        }
    }

    fn handle(&self, request: Request) -> Result<(serde_json::Value, Option<OwnedFd>)> {
        let machines = &self.machines;
        let value = match request {
            Request::Hello => json(&self.info)?,
            Request::Create { name, options } => json(&machines.create(&name, options)?)?,
            Request::Remove { name } => json(&machines.remove(&name)?)?,
            Request::Start { name } => json(&machines.start(&name)?)?,
            Request::Stop { name, grace_seconds } => {
                json(&machines.stop(&name, Duration::from_secs(grace_seconds))?)?
            }
            Request::Kill { name } => json(&machines.stop(&name, Duration::ZERO)?)?,
            Request::List => json(&machines.list())?,
            Request::Inspect { name } => json(&machines.inspect(&name)?)?,
            Request::Listen { port } => {
                return self.listen(port).map(|fd| (serde_json::Value::Null, Some(fd)));
            }
            Request::Dial { address, timeout_ms } => {
                return dial(address, Duration::from_millis(timeout_ms))
                    .map(|fd| (serde_json::Value::Null, Some(fd)));
            }
            Request::Shutdown { grace_seconds } => {
                machines.shutdown(Duration::from_secs(grace_seconds));
                let _ = fs::remove_file(self.layout.socket());
                serde_json::Value::Null
            }
            Request::Destroy => {
                machines.shutdown(Duration::ZERO);
                remove_tree(self.layout.root())?;
                serde_json::Value::Null
            }
        };
        Ok((value, None))
    }

    fn listen(&self, port: u16) -> Result<OwnedFd> {
        let gateway: Ipv4Addr = self.info.gateway;
        TcpListener::bind(SocketAddrV4::new(gateway, port))
            .map(OwnedFd::from)
            .map_err(|error| Error::Failed(format!("failed to listen on {gateway}:{port}: {error}")))
    }
}

fn dial(address: SocketAddr, timeout: Duration) -> Result<OwnedFd> {
    TcpStream::connect_timeout(&address, timeout)
        .map(OwnedFd::from)
        .map_err(|error| Error::Failed(format!("failed to connect to {address}: {error}")))
}

fn json<T: serde::Serialize>(value: &T) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|error| Error::Failed(error.to_string()))
}

/// Writes one line to `holder.log`, or to the console log of a machine.
pub(super) fn log(text: &str) {
    // A full disk must not end the holder or a machine.
    let _ = writeln!(std::io::stderr(), "{} {text}", jiff::Timestamp::now());
}
