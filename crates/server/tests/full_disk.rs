//! A disk that fills up while the management plane starts: the start succeeds, or fails with an error that names the
//! disk.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use drover_apiserver::auth::pki::{Pki, ServingCertificate};
use drover_apiserver::storage::{Index, MemoryStorage, Storage, StorageError, Version, Write};
use drover_server::DataDir;
use drover_server::backend::Backing;
use drover_server::drivers::Builtin;
use drover_server::plane::{Plane, PlaneOptions};
use futures::future::BoxFuture;

/// Longer than any start.
const LIMIT: Duration = Duration::from_secs(40);
/// A start has many similar writes, a kind and its status in turn: an odd stride hits both.
const STRIDE: usize = 11;
/// SQLite's message, by which the command line recognises a full disk.
const FULL: &str = "database or disk is full";

/// What a full store rejects.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refuses {
    Everything,
    /// Nothing any more: space was freed at once.
    OneWrite,
    /// Only kinds and their status, which are large.
    Kinds,
}

/// A store that has room for a number of the writes that it then rejects.
struct Filling {
    inner: MemoryStorage,
    room: usize,
    refuses: Refuses,
    counted: AtomicUsize,
    full: AtomicBool,
}

impl Filling {
    fn new(room: usize, refuses: Refuses) -> Arc<Self> {
        let (counted, full) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { inner: MemoryStorage::new(), room, refuses, counted, full })
    }

    fn is_refused(&self, write: &Write) -> bool {
        if self.refuses == Refuses::Kinds && write.key.resource() != "customresourcedefinitions" {
            return false;
        }
        let number = self.counted.fetch_add(1, SeqCst);
        if self.refuses == Refuses::OneWrite { number == self.room } else { number >= self.room }
    }
}

impl Storage for Filling {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Version>, StorageError>> {
        let refused = self.is_refused(&write);
        self.full.store(refused, SeqCst);
        if refused {
            return Box::pin(async { Err(StorageError::Full(FULL.into())) });
        }
        self.inner.write(write)
    }

    fn index(&self) -> &Index {
        self.inner.index()
    }

    fn health(&self) -> Result<(), StorageError> {
        if self.full.load(SeqCst) { Err(StorageError::Full(FULL.into())) } else { Ok(()) }
    }

    fn compact(&self, revision: u64) -> BoxFuture<'_, Result<(), StorageError>> {
        self.inner.compact(revision)
    }
}

async fn start(storage: Arc<Filling>) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let data_dir = DataDir::open(dir.path())?;
    let pki = Arc::new(Pki::in_memory(jiff::Timestamp::now())?);
    let pair = pki.serving(&["127.0.0.1".to_owned()], jiff::Timestamp::now())?;
    let url = "https://127.0.0.1:8443".to_owned();
    let options = PlaneOptions {
        api: Backing::Embedded(storage.clone()),
        pki,
        serving: ServingCertificate::new(&pair)?,
        url: url.clone(),
        server_url: url,
        drivers: Arc::new(Builtin::new(&data_dir, &std::env::current_exe()?)),
        install_script: String::new(),
        assets: [].into(),
        patience: Duration::ZERO,
        images: data_dir.registry(),
    };
    Plane::start(options).await?.stop().await;
    Ok(())
}

/// How many such writes a start has.
async fn writes(refuses: Refuses) -> usize {
    let roomy = Filling::new(usize::MAX, refuses);
    start(roomy.clone()).await.unwrap();
    roomy.counted.load(SeqCst)
}

async fn start_ends(room: usize, refuses: Refuses) -> anyhow::Result<()> {
    let ended = tokio::time::timeout(LIMIT, start(Filling::new(room, refuses))).await;
    let ended = ended.unwrap_or_else(|_| panic!("{refuses:?} after {room} writes: the start hangs"));
    if let Err(error) = &ended {
        let text = format!("{error:#}");
        assert!(text.contains(FULL), "{refuses:?} after {room} writes: {text}");
    }
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_disk_that_fills_up_ends() {
    let all = writes(Refuses::Everything).await;
    assert!(all > 50, "{all}");
    for refuses in [Refuses::Everything, Refuses::OneWrite] {
        for room in (0..all).step_by(STRIDE) {
            let _ = start_ends(room, refuses).await;
        }
    }
}

/// After the status of the last kind no write of a kind follows that could fail, so only waiting for the kind shows
/// the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_whose_status_cannot_be_stored_ends_the_start() {
    let kinds = writes(Refuses::Kinds).await;
    for left in 1..4 {
        start_ends(kinds - left, Refuses::Kinds).await.unwrap_err();
    }
    start_ends(kinds, Refuses::Kinds).await.unwrap();
}
