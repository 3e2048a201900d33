//! Everything the agent does to or learns from a machine goes through [`Host`].
//!
//! The real machine is one implementation ([`RealHost`]); [`MemoryHost`] is another, so that hundreds of machines can
//! live in one process and a test can pull the plug between any two writes. Paths are absolute, as the machine sees
//! them; an implementation maps them to wherever its root is.

#[cfg(any(windows, test))]
mod access_list;
mod alive;
mod dial;
#[cfg(unix)]
mod left;
mod lookup;
#[cfg(any(test, feature = "memory-host"))]
mod memory;
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

/// A byte stream to another program.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
/// A boxed [`Io`].
pub type BoxIo = Box<dyn Io>;

/// What lies at a path, not following a final symlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
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

/// The kinds of things at a path that the agent tells apart.
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

/// Mode and owner a path shall have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Permission bits.
    pub mode: u32,
    /// Owner and group; `None` leaves them to whoever creates the path.
    pub owner: Option<(u32, u32)>,
}

/// A program to run to its end.
#[derive(Clone, Default)]
pub struct Exec {
    /// Path, or a name to be found on the agent's own PATH.
    pub program: String,
    /// Arguments.
    pub args: Vec<String>,
    /// The whole environment; later entries win.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub dir: PathBuf,
    /// Both streams come through one pipe, so in the order in which they were printed, where the system can do that.
    pub together: bool,
    /// Kill the process group after this long.
    pub timeout: Option<Duration>,
    /// A file that names the process group as long as it runs, for [`Host::end_left`]. Its directory must exist.
    pub record: Option<PathBuf>,
}

/// Which pipe a piece of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// That of both ([`Exec::together`]).
    Both,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited, or was killed by a signal (then 128 + the signal, as a shell says).
    Code(i32),
    /// It was killed because its time was up.
    TimedOut,
}

/// Takes output as it comes, in chunks of any size.
pub trait Sink: Send {
    /// One chunk.
    fn write(&mut self, source: Source, chunk: &[u8]);
}

/// A machine.
pub trait Host: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// Sixty-four random bits, for jitter.
    fn random(&self) -> u64;
    /// The agent's own environment, which instructions inherit.
    fn env(&self) -> Vec<(String, String)>;
    /// The agent's uid and gid.
    fn identity(&self) -> (u32, u32);

    /// The path as the machine sees it from everywhere. People give relative ones on the command line.
    fn absolute(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path)
    }

    /// The whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// A reader, for files that need not fit into memory.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;
    /// A writer to a file that must not exist. Not durable: for content that can be made again.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Box<dyn Write + Send>>;
    /// What lies there, or where a symlink there leads.
    fn stat_target(&self, path: &Path) -> io::Result<Stat>;
    /// What lies there.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// The directory and its parents; parents that are missing get 0755.
    fn make_dirs(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Replaces the file atomically and durably: after a crash the path holds the old or the new content, and once this
    /// returned, the new one. A symlink at the path is replaced, not followed.
    fn replace(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()>;
    /// Replaces the file atomically for whoever reads it now, without waiting for the disk: for what nobody needs after
    /// a power loss.
    fn refresh(&self, path: &Path, content: &[u8], attr: Attr) -> io::Result<()> {
        self.replace(path, content, attr)
    }
    /// Writes a file that exists as it stands, so that it takes no more room than it has: for when there is no room for
    /// another beside it. What is left over of the old content becomes blanks.
    fn rewrite(&self, _path: &Path, _content: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sets mode and owner where they differ; a final symlink is not followed.
    fn set_attr(&self, path: &Path, attr: Attr) -> io::Result<()>;
    /// Unlinks a file or symlink.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all below it, following no symlink.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Makes a symlink.
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()>;
    /// Makes a hard link.
    fn hard_link(&self, existing: &Path, path: &Path) -> io::Result<()>;

    /// Moves a file to another name in its directory, over what is there, durably: its content is on disk before the
    /// name is, and both are once this returned.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// The file of the agent's own program, if the agent may replace it.
    fn executable(&self) -> Option<PathBuf>;
    /// Becomes the program that now lies at the path, as the same process with the same arguments and environment.
    /// Comes back only if that fails.
    fn become_program<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Error>;

    /// To wait for changes in directories; `None` where that takes looking again and again.
    fn watcher(&self) -> Option<Box<dyn Watcher>> {
        None
    }

    /// Runs a program in its own process group. Dropping the future kills the group.
    fn run<'a>(&'a self, exec: &'a Exec, sink: &'a mut dyn Sink) -> BoxFuture<'a, io::Result<Exit>>;
    /// Ends the process group that a record names if the agent that ran it is dead, and tells its id. Blocks for some
    /// milliseconds.
    fn end_left(&self, _record: &Path) -> io::Result<Option<i32>> {
        Ok(None)
    }
    /// Opens a TCP connection as seen from the machine.
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<BoxIo>>;
    /// Runs work that blocks (files, unpacking) where it delays nobody.
    fn blocking<'a>(&'a self, job: Box<dyn FnOnce() + Send + 'static>) -> BoxFuture<'a, ()>;
}

/// Runs blocking work on the host and hands back its result. `None` if it panicked.
pub async fn offload<T, F>(host: &dyn Host, job: F) -> Option<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (sender, receiver) = tokio::sync::oneshot::channel();
    host.blocking(Box::new(move || {
        // The receiver is gone only when the caller was cancelled.
        let _ = sender.send(job());
    }))
    .await;
    receiver.await.ok()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::Program;

    /// A machine on which nothing can be run.
    pub(crate) struct NoProgram;

    impl Program for NoProgram {}
}
