//! All access of the agent to the machine goes through [`Host`].
//!
//! [`RealHost`] is the real machine. `MemoryHost` (feature `memory-host`) is a simulated one, so that hundreds of
//! machines can run in one process and a test can cut the power between any two writes. Paths are absolute on the
//! machine; an implementation maps them to its root.

#[cfg(any(windows, test))]
mod access_list;
mod alive;
mod dial;
mod lookup;
#[cfg(any(test, feature = "memory-host"))]
mod memory;
#[cfg(unix)]
mod orphans;
mod process;
mod put;
mod real;
#[cfg_attr(unix, path = "sys/unix.rs")]
#[cfg_attr(windows, path = "sys/windows.rs")]
mod sys;
#[cfg(any(test, feature = "memory-host"))]
mod volume;
mod watch;

use std::{
    future::Future,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};

pub use alive::is_alive;
#[cfg(any(test, feature = "memory-host"))]
pub use memory::{MemoryHost, Program};
pub use real::RealHost;
pub use watch::Watcher;

/// A future that can be moved between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
/// A boxed [`Io`].
pub type BoxIo = Box<dyn Io>;

/// The metadata of a path, without following a symlink at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub len: u64,
}

/// The types of files that the agent distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// The mode and owner to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Permission bits.
    pub mode: u32,
    /// Owner and group; `None` keeps the default.
    pub owner: Option<(u32, u32)>,
}

/// A program to run.
#[derive(Clone, Default)]
pub struct Exec {
    /// A path, or a name that is looked up in the agent's own PATH.
    pub program: String,
    /// Arguments.
    pub args: Vec<String>,
    /// The whole environment; later entries override earlier ones.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub dir: PathBuf,
    /// Use one pipe for both streams, if the system supports it, so that their order is kept.
    pub combined: bool,
    /// Kill the process group after this time.
    pub timeout: Option<Duration>,
    /// A file that records the process group while it runs, for [`Host::end_orphans`]. Its directory must exist.
    pub record: Option<PathBuf>,
}

/// The pipe of a chunk of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// One pipe for both ([`Exec::combined`]).
    Both,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code, or was killed by a signal (128 + the signal, as in a shell).
    Code(i32),
    /// It was killed after its timeout.
    TimedOut,
}

/// Receives output in chunks of any size.
pub trait Sink: Send {
    /// Receives one chunk.
    fn write(&mut self, source: Source, chunk: &[u8]);
}

/// A machine.
pub trait Host: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// 64 random bits, for jitter.
    fn random(&self) -> u64;
    /// The agent's own environment, which instructions inherit.
    fn env(&self) -> Vec<(String, String)>;
    /// The agent's uid and gid.
    fn identity(&self) -> (u32, u32);

    /// The absolute path; users can pass a relative path on the command line.
    fn absolute(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path)
    }

    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Opens a file that may be too large for memory.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;
    /// Creates a file that must not exist. Not durable: for content that can be created again.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Box<dyn Write + Send>>;
    /// The metadata of a path, following symlinks.
    fn stat_target(&self, path: &Path) -> io::Result<Stat>;
    /// The metadata of a path, without following a symlink at its end.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// The names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Creates the directory and its parents; missing parents get mode 0755.
    fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Replaces the file atomically and durably: after a crash the path has the old or the new content, and after this
    /// call returned, the new one. A symlink at the path is replaced, not followed.
    fn replace(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()>;
    /// Replaces the file atomically for readers, but does not wait for the disk: for content that is not needed after a
    /// power failure.
    fn refresh(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        self.replace(path, content, attr)
    }
    /// Overwrites an existing file in place, so that it needs no more space on the disk: for when the disk is full. The
    /// rest of the old content is filled with spaces.
    fn rewrite(&self, _path: &Path, _content: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sets mode and owner if they differ; a symlink at the end of the path is not followed.
    fn set_attr(&self, path: &Path, attr: Attr) -> io::Result<()>;
    /// Removes a file or symlink.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and its content, without following symlinks.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Creates a symlink.
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()>;
    /// Creates a hard link.
    fn hard_link(&self, existing: &Path, path: &Path) -> io::Result<()>;

    /// Renames a file within its directory, replacing an existing one, durably: its content is on disk before the name,
    /// and both are after this call returned.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// The path of the agent's own program, if the agent may replace it.
    fn executable(&self) -> Option<PathBuf>;
    /// Executes the program at the path in this process, with the same arguments and environment. Returns only on
    /// failure.
    fn become_program<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Error>;

    /// Watches directories for changes; `None` if the platform requires polling.
    fn watcher(&self) -> Option<Box<dyn Watcher>> {
        None
    }

    /// Runs a program in its own process group. Dropping the future kills the group.
    fn run<'a>(&'a self, exec: &'a Exec, sink: &'a mut dyn Sink) -> BoxFuture<'a, io::Result<Exit>>;
    /// Kills the process group in a record if the agent that started it is dead, and returns its id. Blocks for some
    /// milliseconds.
    fn end_orphans(&self, _record: &Path) -> io::Result<Option<i32>> {
        Ok(None)
    }
    /// Opens a TCP connection from the machine.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>>;
    /// Runs blocking work (files, unpacking) without blocking other tasks.
    fn blocking<'a>(&'a self, job: Box<dyn FnOnce() + Send + 'static>) -> BoxFuture<'a, ()>;
}

/// Runs blocking work on the host and returns its result; `None` if it panicked.
pub async fn offload<T, F>(host: &dyn Host, job: F) -> Option<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (sender, receiver) = tokio::sync::oneshot::channel();
    host.blocking(Box::new(move || {
        // The receiver is dropped only if the caller was cancelled.
        let _ = sender.send(job());
    }))
    .await;
    receiver.await.ok()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::Program;

    /// A host on which no program can run.
    pub(crate) struct NoProgram;

    impl Program for NoProgram {}
}
