//! The durable store: one SQLite file in WAL mode with full fsync, one writer thread, group commit.
//!
//! Readers do not use SQLite: they read the [`Index`], to which the writer publishes after COMMIT.

mod file;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Index, Retention, Storage, StorageError, Version, Write};
use crate::clock::{Clock, SystemClock};
use file::Database;
use writer::{Request, Writer};

/// Called just before each COMMIT; an error makes the commit fail. For fault tests.
pub type CommitFault = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Options of a [`SqliteStorage`].
#[derive(Clone)]
pub struct SqliteOptions {
    /// Limits of the history.
    pub retention: Retention,
    /// The clock for the times of events.
    pub clock: Arc<dyn Clock>,
    /// Maximum size of the file in pages of 4 KiB, for tests of a full disk.
    pub max_pages: Option<u32>,
    /// See [`CommitFault`].
    pub commit_fault: Option<CommitFault>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            clock: Arc::new(SystemClock),
            max_pages: None,
            commit_fault: None,
        }
    }
}

/// The store in `<directory>/store.db`.
pub struct SqliteStorage {
    index: Arc<Index>,
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<StorageError>>>,
    directory: PathBuf,
    // Held for its lock, which the kernel releases even after SIGKILL.
    _lock: File,
}

impl SqliteStorage {
    /// Opens or creates the store in a directory and loads it.
    pub fn open(directory: &Path) -> Result<Self, StorageError> {
        Self::open_with(directory, SqliteOptions::default())
    }

    /// Opens or creates the store with options.
    pub fn open_with(directory: &Path, options: SqliteOptions) -> Result<Self, StorageError> {
        let backend =
            |error: std::io::Error| StorageError::Backend(format!("{}: {error}", directory.display()).into());
        std::fs::create_dir_all(directory).map_err(backend)?;
        let lock = lock(directory)?;
        let database = Database::open(&directory.join("store.db"), options.max_pages)?;
        let index = Arc::new(Index::new(options.retention));
        database.load(&index)?;
        let failure = Arc::new(Mutex::new(None));
        let (requests, inbox) = mpsc::channel();
        let writer = Writer { database, index: index.clone(), options, failure: failure.clone() };
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(&inbox))
            .map_err(backend)?;
        let directory = directory.to_owned();
        Ok(Self { index, requests: Some(requests), thread: Some(thread), failure, directory, _lock: lock })
    }

    fn send(&self, request: Request) -> Result<(), StorageError> {
        self.requests.as_ref().ok_or(StorageError::Closed)?.send(request).map_err(|_| StorageError::Closed)
    }
}

impl Storage for SqliteStorage {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Request::Write(write, reply));
        Box::pin(async move {
            sent?;
            answer.await.map_err(|_| StorageError::Closed)?
        })
    }

    fn index(&self) -> &Index {
        &self.index
    }

    fn health(&self) -> Result<(), StorageError> {
        match &*self.failure.lock() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    fn size(&self) -> u64 {
        let length = |name| std::fs::metadata(self.directory.join(name)).map_or(0, |file| file.len());
        length("store.db") + length("store.db-wal")
    }

    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Request::Compact(revision, reply));
        Box::pin(async move {
            sent?;
            answer.await.map_err(|_| StorageError::Closed)?
        })
    }
}

impl Drop for SqliteStorage {
    fn drop(&mut self) {
        // Without a sender, the writer finishes its queue and closes the file.
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(directory: &Path) -> Result<File, StorageError> {
    let path = directory.join("lock");
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(|error| StorageError::Backend(format!("{}: {error}", path.display()).into()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(StorageError::InUse(directory.display().to_string().into()))
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(StorageError::Backend(format!("{}: {error}", path.display()).into()))
        }
    }
}
