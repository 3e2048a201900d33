//! The host of this process, or a directory that represents a machine.

use std::{
    fs,
    hash::{BuildHasher as _, Hasher as _},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    Attr, BoxFuture, BoxIo, Exec, Exit, Host, Kind, Sink, Stat, Watcher, dial, lookup::Lookups, process, put,
    sys,
};

/// See the module.
pub struct RealHost {
    root: PathBuf,
    /// Whether writes wait for the disk.
    durable: bool,
    executable: Option<PathBuf>,
    leftovers: put::Leftovers,
    lookups: Lookups,
}

impl RealHost {
    /// The host itself.
    pub fn new() -> Self {
        Self::at("/")
    }

    /// A machine whose `/` is a directory. Programs run as ordinary processes with the machine's paths, so this is
    /// suitable for tests and simulations whose commands do not use absolute paths.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            durable: true,
            executable: None,
            leftovers: put::Leftovers::default(),
            lookups: Lookups::default(),
        }
    }

    /// Allows the agent to replace the program of this process. Off by default, because a process that embeds the agent
    /// runs another program.
    pub fn with_own_executable(mut self) -> Self {
        // Resolved now: after the file is replaced, the kernel reports it as deleted.
        self.executable = std::env::current_exe().ok();
        self
    }

    /// A directory as the disk of a machine whose content is not needed after a power failure of this host, so nothing
    /// waits for the disk.
    #[cfg(any(test, feature = "memory-host"))]
    pub(super) fn unsynced(root: &Path) -> Self {
        Self { durable: false, ..Self::at(root) }
    }

    fn put(&self, path: &Path, content: &[u8], attr: Attr, durable: bool) -> io::Result<()> {
        put::put(&self.leftovers, &self.path(path), content, attr, durable, || self.random())
    }

    fn path(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(relative) => self.root.join(relative),
            Err(_) => self.root.join(path),
        }
    }
}

impl Default for RealHost {
    fn default() -> Self {
        Self::new()
    }
}

impl Host for RealHost {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn random(&self) -> u64 {
        // The kernel seeds each RandomState, which is sufficient for jitter and needs no further dependency.
        std::hash::RandomState::new().build_hasher().finish()
    }

    fn env(&self) -> Vec<(String, String)> {
        // A plan cannot use names and values that are not valid UTF-8.
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn identity(&self) -> (u32, u32) {
        sys::identity()
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        if self.root == Path::new("/") {
            // Fails only for an empty path, or if the current directory was removed.
            return std::path::absolute(path).unwrap_or_else(|_| Path::new("/").join(path));
        }
        Path::new("/").join(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(self.path(path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(fs::File::open(self.path(path))?))
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<Box<dyn Write + Send>> {
        let path = self.path(path);
        let file = sys::create_new(&path, mode)?;
        // Independent of the umask.
        sys::set_mode(&path, mode)?;
        Ok(Box::new(io::BufWriter::with_capacity(64 * 1024, file)))
    }

    fn stat_target(&self, path: &Path) -> io::Result<Stat> {
        fs::metadata(self.path(path)).map(|found| stat(&found))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        fs::symlink_metadata(self.path(path)).map(|found| stat(&found))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<()> {
        let path = self.path(path);
        if let Some(parent) = path.parent() {
            sys::make_parents(parent)?;
        }
        match sys::make_dir(&path, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn replace(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        self.put(path, content, attr, self.durable)
    }

    fn refresh(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        self.put(path, content, attr, false)
    }

    fn rewrite(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = sys::open_to_write(&self.path(path))?;
        let room = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if content.len() > room {
            // Half of the new content would be worse than the old content.
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut padded = content.to_vec();
        padded.resize(room, b' ');
        file.write_all(&padded)
    }

    fn set_attr(&self, path: &Path, attr: Attr) -> io::Result<()> {
        let mut path = self.path(path);
        let mut found = fs::symlink_metadata(&path)?;
        if found.file_type().is_symlink() && path.is_dir() {
            // `/var/lib/rancher` is often a link to a larger disk; the target directory is meant.
            path = fs::canonicalize(&path)?;
            found = fs::symlink_metadata(&path)?;
        }
        if let Some((uid, gid)) = attr.owner {
            sys::own(&path, uid, gid, &found)?;
        }
        if !found.file_type().is_symlink() && sys::attributes(&fs::symlink_metadata(&path)?).0 != attr.mode {
            sys::set_mode(&path, attr.mode)?;
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(self.path(path))
    }

    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        sys::symlink(target, &self.path(path))
    }

    fn hard_link(&self, existing: &Path, path: &Path) -> io::Result<()> {
        fs::hard_link(self.path(existing), self.path(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.path(from), self.path(to));
        if !self.durable {
            return put::rename(&from, &to);
        }
        put::sync_file(&fs::File::open(&from)?, &from)?;
        put::rename(&from, &to)?;
        put::sync_directory(to.parent().ok_or(io::ErrorKind::InvalidInput)?)
    }

    fn executable(&self) -> Option<PathBuf> {
        self.executable.clone()
    }

    fn become_program<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Error> {
        Box::pin(async move { sys::become_program(&self.path(path)) })
    }

    fn watcher(&self) -> Option<Box<dyn Watcher>> {
        sys::watcher(&self.root)
    }

    fn run<'a>(&'a self, exec: &'a Exec, sink: &'a mut dyn Sink) -> BoxFuture<'a, io::Result<Exit>> {
        Box::pin(process::run(
            exec,
            self.path(&exec.dir),
            exec.record.as_deref().map(|path| self.path(path)),
            sink,
        ))
    }

    #[cfg(unix)]
    fn end_orphans(&self, record: &Path) -> io::Result<Option<i32>> {
        super::orphans::end(&self.path(record))
    }

    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        Box::pin(async move {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = dial::connect(&self.lookups, host, port).await?;
            stream.set_nodelay(true)?;
            // A watch can be silent for minutes: keep-alive detects a dead connection earlier.
            let keepalive = socket2::TcpKeepalive::new()
                .with_time(Duration::from_secs(20))
                .with_interval(Duration::from_secs(5));
            #[cfg(unix)]
            let keepalive = keepalive.with_retries(4);
            let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            Ok(Box::new(stream) as BoxIo)
        })
    }

    fn blocking<'a>(&'a self, job: Box<dyn FnOnce() + Send + 'static>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // The caller sees a panic as a missing result.
            let _ = tokio::task::spawn_blocking(job).await;
        })
    }
}

fn stat(found: &fs::Metadata) -> Stat {
    let kind = match found.file_type() {
        t if t.is_file() => Kind::File,
        t if t.is_dir() => Kind::Directory,
        t if t.is_symlink() => Kind::Symlink,
        _ => Kind::Other,
    };
    let (mode, uid, gid) = sys::attributes(found);
    Stat { kind, mode, uid, gid, len: found.len() }
}
