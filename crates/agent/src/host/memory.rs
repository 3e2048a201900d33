//! A simulated machine: files are in memory, programs and connections are functions of the test or simulation.
//!
//! Time is tokio's, so a paused runtime simulates hours in milliseconds. [`MemoryHost::crash_after_writes`] simulates a
//! power failure: from then on every write fails, no program starts and all connections are dead, until
//! [`MemoryHost::restart`]; then the disk contains only durable writes. Programs that need real files share a directory
//! with the machine: [`MemoryHost::with_volume`].
//!
//! The disk behaves like a journaling file system: a durable write also makes all earlier directory changes durable,
//! but not the content of other files.

mod disk;
mod line;

use std::{
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
use disk::{Disk, Entry, Node};
use line::{Line, is_off, power_lost};

/// Simulates the programs and connections of the machine.
pub trait Program: Send + Sync + 'static {
    /// Runs a program to its end; the host gives access to the machine's files. By default it is not found.
    fn run<'a>(
        &'a self,
        _host: &'a MemoryHost,
        _exec: &'a Exec,
        _sink: &'a mut dyn Sink,
    ) -> BoxFuture<'a, io::Result<Exit>> {
        Box::pin(async { Err(io::ErrorKind::NotFound.into()) })
    }

    /// Opens a connection from the machine. By default it is refused.
    fn dial<'a>(&'a self, _host: &'a str, _port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

/// See the module.
pub struct MemoryHost {
    files: Mutex<Disk>,
    volumes: Vec<Volume>,
    program: Box<dyn Program>,
    start: Instant,
    epoch: Timestamp,
    /// The offset of the clock in seconds.
    ahead: AtomicI64,
    random: AtomicU64,
    /// The number of writes until the power fails; `u64::MAX` for never.
    power: Arc<AtomicU64>,
    writes: AtomicU64,
    env: Vec<(String, String)>,
    executable: Option<PathBuf>,
    became: AtomicU64,
}

/// The path at which a Linux process finds its own program, even after the file was replaced.
const RUNNING: &str = "/proc/self/exe";

impl MemoryHost {
    /// Creates a machine with an empty disk whose clock starts at `epoch`. Call it inside a tokio runtime.
    pub fn new(epoch: Timestamp, seed: u64, program: impl Program) -> Self {
        Self {
            files: Mutex::default(),
            volumes: Vec::new(),
            program: Box::new(program),
            start: Instant::now(),
            epoch,
            ahead: AtomicI64::new(0),
            random: AtomicU64::new(seed),
            power: Arc::new(AtomicU64::new(u64::MAX)),
            writes: AtomicU64::new(0),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            executable: None,
            became: AtomicU64::new(0),
        }
    }

    /// Sets an environment variable of the agent.
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the path of the agent's program, which the agent may replace. The test must start the agent again after it
    /// became another program; see [`MemoryHost::became`].
    pub fn with_executable(mut self, path: impl Into<PathBuf>, content: &[u8]) -> io::Result<Self> {
        let path = path.into();
        self.make_dirs(path.parent().unwrap_or(Path::new("/")), 0o755)?;
        self.replace(&path, content, Attr { mode: 0o755, owner: None })?;
        self.make_dirs(Path::new(RUNNING).parent().unwrap_or(Path::new("/")), 0o755)?;
        self.executable = Some(path);
        self.load_executable()?;
        Ok(self)
    }

    /// Loads the program at the agent's path; this is not a write.
    fn load_executable(&self) -> io::Result<()> {
        if let Some(path) = &self.executable {
            let node = Node::File(Arc::new(Mutex::new(self.read(path)?)));
            self.files().seen.insert(RUNNING.into(), Entry { node, mode: 0o755, owner: (0, 0) });
        }
        Ok(())
    }

    /// How often the agent became another program.
    pub fn became(&self) -> u64 {
        self.became.load(Ordering::SeqCst)
    }

    /// Sets the machine's clock by this many seconds ahead (or back, if negative).
    pub fn set_clock(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Maps everything below `path` to the real directory `root`, which does not have to exist yet.
    pub fn with_volume(mut self, path: impl Into<PathBuf>, root: &Path) -> Self {
        self.volumes.push(Volume::new(path.into(), root));
        self
    }

    fn volume(&self, path: &Path) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.holds(path))
    }

    /// The `n`th write from now fails, and all later ones.
    pub fn crash_after_writes(&self, n: u64) {
        self.power.store(n, Ordering::SeqCst);
    }

    /// Restores the power. If it had failed, the disk contains only durable writes, and the agent runs the program on
    /// the disk.
    pub fn restart(&self) {
        if self.is_dead() {
            self.files().forget();
            // A missing program is not started.
            let _ = self.load_executable();
        }
        self.power.store(u64::MAX, Ordering::SeqCst);
    }

    /// Whether the power has failed, or will fail at the next write.
    pub fn is_dead(&self) -> bool {
        is_off(&self.power)
    }

    /// The number of writes.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    fn files(&self) -> MutexGuard<'_, Disk> {
        // The lock is never poisoned.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> io::Result<()> {
        let spent = self.power.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            u64::MAX => Some(u64::MAX),
            left => left.checked_sub(1),
        });
        if spent.is_err() {
            return Err(power_lost());
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The final target of a symlink at the path.
    fn target(&self, path: &Path) -> io::Result<PathBuf> {
        let mut at = clean(path);
        for _ in 0..8 {
            match self.files().seen.get(&at).map(|entry| entry.node.clone()) {
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
            && !matches!(files.seen.get(parent), Some(Entry { node: Node::Directory, .. }))
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        files.change(&path, Some(entry));
        Ok(())
    }

    fn put_file(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        if self.stat(path).is_ok_and(|stat| stat.kind == Kind::Directory) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let node = Node::File(Arc::new(Mutex::new(content.to_vec())));
        self.put(path, Entry { node, mode: attr.mode, owner: attr.owner.unwrap_or((0, 0)) })
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
        // SplitMix64: the same seed gives the same sequence.
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn env(&self) -> Vec<(String, String)> {
        self.env.clone()
    }

    fn identity(&self) -> (u32, u32) {
        (0, 0)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let at = self.target(path)?;
        if let Some(volume) = self.volume(&at) {
            return volume.files().read(&at);
        }
        match self.files().seen.get(&at).map(|entry| entry.node.clone()) {
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
        let entry = files.seen.get(&path).ok_or(io::ErrorKind::NotFound)?;
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
            .seen
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
        self.put_file(path, content, attr)?;
        self.files().sync(&clean(path));
        Ok(())
    }

    fn refresh(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        self.write()?;
        match self.volume(&clean(path)) {
            Some(volume) => volume.files().refresh(&clean(path), content, Volume::attr(attr)),
            None => self.put_file(path, content, attr),
        }
    }

    fn set_attr(&self, path: &Path, attr: Attr) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(path)) {
            return volume.files().set_attr(&clean(path), Volume::attr(attr));
        }
        let mut files = self.files();
        let mut entry = files.seen.get(&clean(path)).cloned().ok_or(io::ErrorKind::NotFound)?;
        entry.mode = attr.mode;
        entry.owner = attr.owner.unwrap_or(entry.owner);
        files.change(&clean(path), Some(entry));
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
        self.files().change(&clean(path), None);
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
        let mut files = self.files();
        let gone: Vec<PathBuf> = files.seen.keys().filter(|at| at.starts_with(&path)).cloned().collect();
        for path in gone {
            files.change(&path, None);
        }
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
        let entry = self.files().seen.get(&clean(existing)).cloned().ok_or(io::ErrorKind::NotFound)?;
        self.put(path, entry)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.write()?;
        if let Some(volume) = self.volume(&clean(to)) {
            return volume.files().rename(&clean(from), &clean(to));
        }
        let entry = self.files().seen.get(&clean(from)).cloned().ok_or(io::ErrorKind::NotFound)?;
        self.put(to, entry)?;
        let mut files = self.files();
        files.change(&clean(from), None);
        files.sync(&clean(to));
        Ok(())
    }

    fn executable(&self) -> Option<PathBuf> {
        self.executable.clone()
    }

    fn become_program<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, io::Error> {
        Box::pin(async move {
            if self.is_dead() {
                return power_lost();
            }
            if let Err(error) = self.load_executable() {
                return error;
            }
            self.became.fetch_add(1, Ordering::SeqCst);
            // This process has ended.
            std::future::pending().await
        })
    }

    fn run<'a>(&'a self, exec: &'a Exec, sink: &'a mut dyn Sink) -> BoxFuture<'a, io::Result<Exit>> {
        if self.is_dead() {
            return Box::pin(async { Err(power_lost()) });
        }
        self.program.run(self, exec, sink)
    }

    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        Box::pin(async move {
            let io = self.program.dial(host, port).await?;
            Ok(Box::new(Line { io, power: self.power.clone() }) as BoxIo)
        })
    }

    fn blocking<'a>(&'a self, job: Box<dyn FnOnce() + Send + 'static>) -> BoxFuture<'a, ()> {
        // Run on this thread: with another thread, paused time would advance.
        Box::pin(async move { job() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::NoProgram;

    const PRIVATE: Attr = Attr { mode: 0o600, owner: None };

    fn host() -> MemoryHost {
        let host = MemoryHost::new(Timestamp::UNIX_EPOCH, 1, NoProgram);
        host.make_dirs(Path::new("/v"), 0o700).unwrap();
        host.replace(Path::new("/v/old"), b"old", PRIVATE).unwrap();
        host
    }

    fn lose_power(host: &MemoryHost) {
        host.crash_after_writes(0);
        host.restart();
    }

    #[tokio::test]
    async fn a_power_failure_loses_writes_that_are_not_durable() {
        let host = host();
        let read = |path: &str| host.read(Path::new(path)).ok();
        host.refresh(Path::new("/v/old"), b"new", PRIVATE).unwrap();
        host.refresh(Path::new("/v/status"), b"shown", PRIVATE).unwrap();
        host.create(Path::new("/v/half"), 0o600).unwrap().write_all(b"ha").unwrap();
        host.make_dirs(Path::new("/w/deep"), 0o700).unwrap();
        assert_eq!(read("/v/old").unwrap(), b"new", "visible to readers at once");
        lose_power(&host);
        assert_eq!(host.list(Path::new("/v")).unwrap(), ["old"]);
        assert_eq!(read("/v/old").unwrap(), b"old");
        assert!(host.stat(Path::new("/w")).is_err());
        // A removal that is not durable is undone.
        host.remove_tree(Path::new("/v")).unwrap();
        lose_power(&host);
        assert_eq!(read("/v/old").unwrap(), b"old");
        // Without a power failure, everything is kept.
        host.refresh(Path::new("/v/old"), b"new", PRIVATE).unwrap();
        host.restart();
        assert_eq!(read("/v/old").unwrap(), b"new");
    }

    #[tokio::test]
    async fn a_durable_write_keeps_its_directories_and_earlier_removals() {
        let host = host();
        host.remove_file(Path::new("/v/old")).unwrap();
        host.refresh(Path::new("/v/status"), b"shown", PRIVATE).unwrap();
        host.make_dirs(Path::new("/w/deep"), 0o700).unwrap();
        host.create(Path::new("/w/deep/beside"), 0o600).unwrap().write_all(b"whole").unwrap();
        host.rename(Path::new("/w/deep/beside"), Path::new("/w/deep/file")).unwrap();
        lose_power(&host);
        assert_eq!(host.read(Path::new("/w/deep/file")).unwrap(), b"whole");
        assert_eq!(host.list(Path::new("/w/deep")).unwrap(), ["file"]);
        assert!(host.list(Path::new("/v")).unwrap().is_empty(), "the content of another file is not durable");
    }
}
