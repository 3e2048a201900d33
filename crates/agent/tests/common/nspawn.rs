//! A Debian with systemd as its first process, in a container that shares only the kernel with the host: its network is
//! a namespace with a loopback interface, in which the test listens.

use std::{
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// What the install script needs on a host, and nothing more.
const PACKAGES: &str = "systemd,systemd-sysv,curl,ca-certificates,iproute2";

/// The root file system, created once and kept. `Err` states why it cannot be created.
fn base() -> Result<PathBuf, String> {
    if !nix::unistd::getuid().is_root() {
        return Err("booting a container requires root".into());
    }
    for program in ["debootstrap", "systemd-nspawn", "nsenter", "ip"] {
        let found =
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|at| Path::new(at).join(program).exists());
        if !found {
            return Err(format!("{program} is not installed"));
        }
    }
    // The agent under test may need this host's C library, so use the same release if possible.
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| release.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let suite = if field("ID=") == "debian" { field("VERSION_CODENAME=") } else { "bookworm" };
    let cache = std::env::var_os("DROVER_CACHE").filter(|path| !path.is_empty()).map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache/drover"),
        PathBuf::from,
    );
    let key = &drover_plan::checksum(PACKAGES.as_bytes())[..8];
    let base = cache.join(format!("nspawn-{suite}-{key}"));
    if base.is_dir() {
        return Ok(base);
    }
    fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let building = cache.join(format!("nspawn-building-{}", std::process::id()));
    eprintln!("creating {} once, which takes minutes", base.display());
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", &format!("--include={PACKAGES}"), suite])
        .arg(&building)
        .output()
        .map_err(|error| error.to_string())?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stdout).lines().last().unwrap_or_default().to_owned();
        let _ = fs::remove_dir_all(&building);
        return Err(format!("debootstrap failed: {said}"));
    }
    if fs::rename(&building, &base).is_err() {
        // Another process was faster.
        let _ = fs::remove_dir_all(&building);
    }
    Ok(base)
}

/// A network namespace that exists as long as this value.
pub struct Network {
    path: PathBuf,
    _end: mpsc::Sender<()>,
}

impl Network {
    /// Creates a socket that listens in it.
    fn new() -> io::Result<(Self, TcpListener)> {
        let (end, ended) = mpsc::channel::<()>();
        let (made, result) = mpsc::channel();
        thread::spawn(move || {
            let listener = (|| {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
                // A child process of this thread is in this thread's namespace.
                let up = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
                if !up.success() {
                    return Err(io::Error::other("failed to enable the loopback interface"));
                }
                let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
                let listener = TcpListener::bind("127.0.0.1:0")?;
                listener.set_nonblocking(true)?;
                Ok((PathBuf::from(path), listener))
            })();
            let _ = made.send(listener);
            // The namespace belongs to this thread; it ends with the network.
            let _ = ended.recv();
        });
        let (path, listener) = result.recv().map_err(io::Error::other)??;
        Ok((Self { path, _end: end }, listener))
    }
}

/// A booted container.
pub struct Container {
    dir: tempfile::TempDir,
    name: String,
    nspawn: Option<Child>,
    groups: Vec<PathBuf>,
    _network: Network,
}

impl Container {
    /// Boots it; `Err` states why this host cannot.
    pub fn boot() -> Result<(Self, TcpListener), String> {
        let base = base()?;
        let text = |error: io::Error| error.to_string();
        let dir = tempfile::tempdir().map_err(text)?;
        for name in ["upper", "work", "root"] {
            fs::create_dir(dir.path().join(name)).map_err(text)?;
        }
        let at = |name: &str| dir.path().join(name).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", base.display(), at("upper"), at("work"));
        let mounted = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options, &at("root")])
            .status()
            .map_err(text)?;
        if !mounted.success() {
            let copied =
                Command::new("cp").arg("-a").arg(base.join(".")).arg(at("root")).status().map_err(text)?;
            if !copied.success() {
                return Err("failed to overlay or copy the root file system".into());
            }
        }
        let (network, listener) =
            Network::new().map_err(|error| format!("failed to create a network namespace: {error}"))?;
        let name = format!("drover-{}-{}", std::process::id(), nix::unistd::gettid());
        let mut container = Self { dir, name, nspawn: None, groups: Vec::new(), _network: network };
        container.start().map_err(text)?;
        container.wait_for_boot();
        Ok((container, listener))
    }

    fn start(&mut self) -> io::Result<()> {
        let name = self.name.clone();
        let log = fs::File::create(self.dir.path().join("console"))?;
        let mut command = Command::new("sh");
        let mut keep: &[&str] = &[];
        let mut enter = String::new();
        if !Path::new("/run/systemd/system").exists() {
            // Without systemd on the host, the container has no control group. Hybrid hosts have two hierarchies for
            // that, others one.
            let hierarchies = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"].map(Path::new);
            let mut hierarchies: Vec<&Path> = hierarchies.into_iter().filter(|path| path.is_dir()).collect();
            if hierarchies.is_empty() {
                hierarchies.push(Path::new("/sys/fs/cgroup"));
            }
            for hierarchy in hierarchies {
                let group = hierarchy.join(&name);
                if !group.is_dir() {
                    fs::create_dir(&group)?;
                    self.groups.push(group.clone());
                }
                enter += &format!("echo $$ > {}/cgroup.procs; ", group.display());
            }
            keep = &["--keep-unit"];
        }
        command
            .args(["-ec", &format!("{enter}exec systemd-nspawn \"$@\""), "sh"])
            .args(["--quiet", "--register=no", "--boot", "--link-journal=no", "--console=pipe"])
            .args(["--resolv-conf=off", "--timezone=off"])
            .args(keep)
            .arg(format!("--machine={name}"))
            .arg(format!("--directory={}", self.root().display()))
            .arg(format!("--network-namespace-path={}", self._network.path.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.nspawn = Some(command.spawn()?);
        Ok(())
    }

    /// The container's files, on the host.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// The container's first process.
    fn leader(&self) -> Option<u32> {
        let pid = self.nspawn.as_ref()?.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
            fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "systemd")
        })
    }

    pub fn console(&self) -> String {
        fs::read_to_string(self.dir.path().join("console")).unwrap_or_default()
    }

    /// Waits until systemd has started everything.
    fn wait_for_boot(&mut self) {
        self.until("the container is up", |container| {
            container.leader().is_some()
                && container.says("systemctl is-active multi-user.target") == "active"
        });
    }

    /// Waits for a condition.
    pub fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !condition(self) {
            assert!(Instant::now() < deadline, "timed out waiting for: {what}\n{}", self.console());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a line of shell in the container.
    pub fn shell(&self, line: &str) -> Output {
        let Some(leader) = self.leader() else { panic!("the container is not running\n{}", self.console()) };
        Command::new("nsenter")
            .args(["--target", &leader.to_string(), "--all", "--", "env", "-i"])
            .args(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"])
            .args(["timeout", "300", "sh", "-c", line])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The output of a line of shell.
    pub fn says(&self, line: &str) -> String {
        String::from_utf8_lossy(&self.shell(line).stdout).trim().to_owned()
    }

    /// Restarts it like a user would.
    pub fn reboot(&mut self) {
        let before = self.leader();
        self.shell("systemctl --no-block reboot");
        self.until("the shutdown", |container| container.leader() != before);
        if !self.groups.is_empty() {
            // In another control group, nspawn exits with a code that asks its caller to restart it.
            let ended = self.nspawn.as_mut().unwrap().wait().unwrap();
            assert_eq!(ended.code(), Some(133), "{}", self.console());
            self.start().unwrap();
        }
        self.wait_for_boot();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if thread::panicking() {
            let journal = self.leader().map(|_| self.says("journalctl --no-pager -n 80"));
            eprintln!(
                "--- console ---\n{}\n--- journal ---\n{}",
                self.console(),
                journal.unwrap_or_default()
            );
        }
        if let Some(leader) = self.leader() {
            // All other processes in it end with it.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(leader.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        if let Some(mut nspawn) = self.nspawn.take() {
            let _ = nspawn.wait();
        }
        let _ = Command::new("umount").arg(self.root()).output();
        let _ = fs::remove_dir_all(Path::new("/run/systemd/nspawn/propagate").join(&self.name));
        for group in &self.groups {
            // Removes only empty directories, children first.
            let _ = Command::new("find")
                .arg(group)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"])
                .output();
        }
    }
}
