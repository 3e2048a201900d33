//! A machine without a machine: files in a map, programs and connections as functions of the test or simulation.
//!
//! Time is tokio's, so a paused runtime plays hours in milliseconds. [`MemoryHost::crash_after_writes`] makes the
//! machine lose power: from then on every write fails, until [`MemoryHost::restart`]. Programs that know only real files
//! share a directory with the machine: [`MemoryHost::with_volume`].

use std::{
    collections::BTreeMap,
    io::{self, Cursor, Read, Write},
    path::{Component, Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{Attr, BoxFuture, BoxIo, Exec, Exit, Host, Kind, Sink, Stat, volume::Volume};

/// What happens when an instruction runs a program.
pub trait Program: Send + Sync + 'static {
    /// Runs to the end; the host gives access to the machine's files. Not found unless overridden.
    fn run<'a>(
        &'a self,
        _host: &'a MemoryHost,
        _exec: &'a Exec,
        _sink: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        Box::pin(async { Err(io::ErrorKind::NotFound.into()) })
    }

    /// Answers a connection made on the machine. Refused unless overridden.
    fn dial<'a>(&'a self, _host: &'a str, _port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

#[derive(Clone)]
enum Node {
    Directory,
    // A hard link shares the bytes.
    File(Arc<Mutex<Vec<u8>>>),
    Symlink(PathBuf),
}

#[derive(Clone)]
struct Entry {
    node: Node,
    mode: u32,
    owner: (u32, u32),
}

/// See the module.
pub struct MemoryHost {
    files: Arc<Mutex<BTreeMap<PathBuf, Entry>>>,
    volumes: Vec<Volume>,
    program: Box<dyn Program>,
    start: Instant,
    epoch: Timestamp,
    /// Seconds by which the clock was set ahead since.
    ahead: AtomicI64,
    random: AtomicU64,
    /// Writes left before the power fails; `u64::MAX` for never.
    power: AtomicU64,
    writes: AtomicU64,
    executable: Option<PathBuf>,
    became: AtomicU64,
}

/// Where a Linux process finds the program that it runs, whatever lies at its path by now.
const RUNNING: &str = "/proc/self/exe";

impl MemoryHost {
    /// A machine with an empty disk whose clock starts at `epoch`. Call it inside a tokio runtime.
    pub fn new(epoch: Timestamp, seed: u64, program: impl Program) -> Self {
        Self {
            files: Arc::default(),
            volumes: Vec::new(),
            program: Box::new(program),
            start: Instant::now(),
            epoch,
            ahead: AtomicI64::new(0),
            random: AtomicU64::new(seed),
            power: AtomicU64::new(u64::MAX),
            writes: AtomicU64::new(0),
            executable: None,
            became: AtomicU64::new(0),
        }
    }

    /// The agent's own program lies at `path`, and the agent may replace it. Starting the agent anew after it became
    /// another program is up to the test; see [`MemoryHost::became`].
    pub fn with_executable(mut self, path: impl Into<PathBuf>, content: &[u8]) -> io::Result<Self> {
        let path = path.into();
        self.make_dirs(path.parent().unwrap_or(Path::new("/")), 0o755)?;
        self.replace(&path, content, Attr { mode: 0o755, owner: None })?;
        self.make_dirs(Path::new(RUNNING).parent().unwrap_or(Path::new("/")), 0o755)?;
        self.replace(Path::new(RUNNING), content, Attr { mode: 0o755, owner: None })?;
        self.executable = Some(path);
        Ok(self)
    }

    /// How often the agent became another program.
    pub fn became(&self) -> u64 {
        self.became.load(Ordering::SeqCst)
    }

    /// Sets the machine's clock by so many seconds ahead, or back.
    pub fn set_clock(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Everything below `path` lies in the real directory `root`, under the same names; it need not exist yet.
    pub fn with_volume(mut self, path: impl Into<PathBuf>, root: &Path) -> Self {
        self.volumes.push(Volume::new(path.into(), root));
        self
    }

    fn volume(&self, path: &Path) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.holds(path))
    }

    /// The `n`th write from now fails, and all after it.
    pub fn crash_after_writes(&self, n: u64) {
        self.power.store(n, Ordering::SeqCst);
    }

    /// Power is back; the disk holds what was written before.
    pub fn restart(&self) {
        self.power.store(u64::MAX, Ordering::SeqCst);
    }

    /// Whether the power has failed, or will before the next write.
    pub fn is_dead(&self) -> bool {
        self.power.load(Ordering::SeqCst) == 0
    }

    /// How many writes there were.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Entry>> {
        // Nothing panics while it is held.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> io::Result<()> {
        let spent = self.power.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            u64::MAX => Some(u64::MAX),
            left => left.checked_sub(1),
        });
        if spent.is_err() {
            return Err(io::Error::other("power lost"));
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Where a symlink at the path leads, in the end.
    fn target(&self, path: &Path) -> io::Result<PathBuf> {
        let mut at = clean(path);
        for _ in 0..8 {
            match self.files().get(&at).map(|entry| entry.node.clone()) {
                Some(Node::Symlink(target)) => {
                    at = clean(&at.parent().unwrap_or(Path::new("/")).join(target));
                }
                _ => return Ok(at),
            }
        }
        Err(io::Error::other("too many symbolic links"))
    }

    fn put(&self, path: &Path, entry: Entry) -> io::Result<()> {
        let path = clean(path);
        let mut files = self.files();
        if let Some(parent) = path.parent()
            && parent != Path::new("/")
            && !matches!(files.get(parent), Some(Entry { node: Node::Directory, .. }))
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        files.insert(path, entry);
        Ok(())
    }
}

fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            _ => {}
        }
    }
    out
}

struct Writer {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Write for Writer {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(chunk);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Host for MemoryHost {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::ZERO);
        let ahead = SignedDuration::from_secs(self.ahead.load(Ordering::SeqCst));
        self.epoch.checked_add(elapsed + ahead).unwrap_or(Timestamp::MAX)
    }

    fn random(&self) -> u64 {
        // SplitMix64: the same seed plays the same game.
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn env(&self) -> Vec<(String, String)> {
        vec![("PATH".into(), "/usr/bin:/bin".into())]
    }

    fn identity(&self) -> (u32, u32) {
        (0, 0)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let at = self.target(path)?;
        if let Some(volume) = self.volume(&at) {
            return volume.files().read(&at);
        }
        match self.files().get(&at).map(|entry| entry.node.clone()) {
            Some(Node::File(bytes)) => Ok(bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Some(_) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Cursor::new(self.read(path)?)))
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<Box<dyn Write + Send>> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().create(&clean(path), mode);
        }
        if self.stat(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        self.put(path, Entry { node: Node::File(bytes.clone()), mode, owner: (0, 0) })?;
        Ok(Box::new(Writer { bytes }))
    }

    fn stat_target(&self, path: &Path) -> io::Result<Stat> {
        self.stat(&self.target(path)?)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let path = clean(path);
        if path == Path::new("/") {
            return Ok(Stat { kind: Kind::Directory, mode: 0o755, uid: 0, gid: 0, len: 0 });
        }
        if let Some(volume) = self.volume(&path) {
            return volume.stat(&path);
        }
        let files = self.files();
        let entry = files.get(&path).ok_or(io::ErrorKind::NotFound)?;
        let (kind, len) = match &entry.node {
            Node::Directory => (Kind::Directory, 0),
            Node::File(bytes) => {
                (Kind::File, bytes.lock().unwrap_or_else(PoisonError::into_inner).len() as u64)
            }
            Node::Symlink(_) => (Kind::Symlink, 0),
        };
        Ok(Stat { kind, mode: entry.mode, uid: entry.owner.0, gid: entry.owner.1, len })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let path = clean(path);
        if let Some(volume) = self.volume(&path) {
            return volume.files().list(&path);
        }
        if self.stat(&path)?.kind != Kind::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let files = self.files();
        Ok(files
            .range(path.clone()..)
            .take_while(|(at, _)| at.starts_with(&path))
            .filter(|(at, _)| at.parent() == Some(&path))
            .filter_map(|(at, _)| at.file_name()?.to_str().map(str::to_owned))
            .collect())
    }

    fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.write()?;
        let path = clean(path);
        if let Some(volume) = self.volume(&path) {
            return volume.files().make_dirs(&path, mode);
        }
        let mut at = PathBuf::from("/");
        for part in path.components().skip(1) {
            at.push(part);
            match self.stat(&at).map(|stat| stat.kind) {
                Ok(Kind::Directory) => {}
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(_) => {
                    let mode = if at == path { mode } else { 0o755 };
                    self.put(&at, Entry { node: Node::Directory, mode, owner: (0, 0) })?;
                }
            }
        }
        Ok(())
    }

    fn replace(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().replace(&clean(path), content, Volume::attr(attr));
        }
        if self.stat(path).is_ok_and(|stat| stat.kind == Kind::Directory) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let node = Node::File(Arc::new(Mutex::new(content.to_vec())));
        self.put(path, Entry { node, mode: attr.mode, owner: attr.owner.unwrap_or((0, 0)) })
    }

    fn set_attr(&self, path: &Path, attr: Attr) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().set_attr(&clean(path), Volume::attr(attr));
        }
        let mut files = self.files();
        let entry = files.get_mut(&clean(path)).ok_or(io::ErrorKind::NotFound)?;
        entry.mode = attr.mode;
        entry.owner = attr.owner.unwrap_or(entry.owner);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().remove_file(&clean(path));
        }
        if self.stat(path)?.kind == Kind::Directory {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.files().remove(&clean(path));
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().remove_tree(&clean(path));
        }
        if self.stat(path)?.kind != Kind::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let path = clean(path);
        self.files().retain(|at, _| !at.starts_with(&path));
        Ok(())
    }

    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().symlink(target, &clean(path));
        }
        self.put(path, Entry { node: Node::Symlink(target.to_owned()), mode: 0o777, owner: (0, 0) })
    }

    fn hard_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().hard_link(&clean(existing), &clean(path));
        }
        let entry = self.files().get(&clean(existing)).cloned().ok_or(io::ErrorKind::NotFound)?;
        self.put(path, entry)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(to)) {
            return volume.files().rename(&clean(from), &clean(to));
        }
        let entry = self.files().remove(&clean(from)).ok_or(io::ErrorKind::NotFound)?;
        self.put(to, entry)
    }

    fn executable(&self) -> Option<PathBuf> {
        self.executable.clone()
    }

    fn become_program<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Error> {
        Box::pin(async move {
            let program = self.read(path).and_then(|program| {
                self.replace(Path::new(RUNNING), &program, Attr { mode: 0o755, owner: None })
            });
            if let Err(error) = program {
                return error;
            }
            self.became.fetch_add(1, Ordering::SeqCst);
            // This process is no more.
            std::future::pending().await
        })
    }

    fn run<'a>(&'a self, exec: &'a Exec, sink: &'a mut dyn Sink) -> BoxFuture<'a, io::Result<Exit>> {
        self.program.run(self, exec, sink)
    }

    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        self.program.dial(host, port)
    }

    fn blocking<'a>(&'a self, job: Box<dyn FnOnce() + Send + 'static>) -> BoxFuture<'a, ()> {
        // In place: another thread would let paused time run away.
        Box::pin(async move { job() })
    }
}
