//! A running fleet: its machines, the runner of their Jobs, and the state of its clusters.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_api::provisioning::v1::Cluster;
use drover_runtime::cache::Selector;
use drover_runtime::{Cache, Caches, Error};
use futures::{TryStreamExt, stream};
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clusters::{self, LABEL, LABEL_VALUE, Shape};
use crate::datacenter::Datacenter;
use crate::driver;
use crate::jobs::{Runner, RunnerOptions};
use crate::machine::Disk;
use crate::network::Network;
use crate::progress::{Progress, State};

/// How many machines are switched on concurrently.
const ADOPTIONS: usize = 64;
/// Maximum number of concurrent requests.
const REQUESTS: usize = 32;

/// Options of a fleet.
pub struct FleetOptions {
    /// The directory of the machines' disks.
    pub dir: PathBuf,
    /// The address of the management plane for this process.
    pub server: String,
    /// The address of the management plane for machines.
    pub server_url: String,
    /// Prefix and versions of the installer images.
    pub image_prefix: String,
    pub versions: Vec<String>,
}

/// A running fleet.
pub struct Fleet {
    client: Client,
    clusters: Cache<Cluster>,
    pub datacenter: Arc<Datacenter>,
    progress: Arc<Mutex<Progress>>,
    /// Notified when the progress changes.
    changed: watch::Sender<()>,
    started: Instant,
    caches: Caches,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Locks the directory, so that only one process runs these machines.
    _lock: std::fs::File,
}

impl Fleet {
    /// Activates the driver, switches on the machines that an earlier fleet left in the directory, and runs Jobs.
    pub async fn start(client: Client, options: FleetOptions) -> Result<Self, Error> {
        let doing = || format!("open the fleet in {}", options.dir.display());
        let lock = lock(&options.dir).map_err(Error::other(doing()))?;
        driver::activate(&client).await?;
        let network = Network::routed(&options.server_url, &options.server).map_err(Error::other(doing()))?;
        let versions: Vec<&str> = options.versions.iter().map(String::as_str).collect();
        let datacenter =
            Datacenter::open(&options.dir, Disk::Kept, Arc::new(network), &options.image_prefix, &versions);
        let datacenter = Arc::new(datacenter.map_err(Error::other(doing()))?);
        adopt(&client, &datacenter).await?;

        let stop = CancellationToken::new();
        let caches = Caches::new(client.clone(), stop.clone());
        let labels = Some(format!("{LABEL}={LABEL_VALUE}"));
        let selected = caches.select::<Cluster>(Selector { labels, fields: None });
        let (progress, changed) = (Arc::new(Mutex::new(Progress::default())), watch::Sender::new(()));
        let started = Instant::now();
        let (recorded, notify) = (progress.clone(), changed.clone());
        selected.subscribe(move |change| {
            let state = match change.new {
                None => State::Gone,
                Some(cluster) => state(cluster),
            };
            recorded.lock().record(&change.key.name, state, started.elapsed());
            notify.send_replace(());
        });
        selected.synced().await;
        let tasks = TaskTracker::new();
        let runner = RunnerOptions { driver: driver::DRIVER.into(), managed_by: driver::JOB_RUNNER.into() };
        let (machines, ending, watching) = (datacenter.clone(), stop.clone(), caches.clone());
        tasks.spawn(async move { Runner::run(runner, &watching, machines, ending).await });
        Ok(Self {
            client,
            clusters: selected,
            datacenter,
            progress,
            changed,
            started,
            caches,
            tasks,
            stop,
            _lock: lock,
        })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The current clusters.
    pub fn clusters(&self) -> Vec<Arc<Cluster>> {
        self.clusters.list()
    }

    pub fn progress(&self) -> Progress {
        self.progress.lock().clone()
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until `enough` returns true for the progress.
    pub async fn until(&self, enough: impl Fn(&Progress) -> bool) {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            if enough(&self.progress.lock()) {
                return;
            }
            // The sender exists as long as this fleet.
            let _ = changes.changed().await;
        }
    }

    /// Creates the missing clusters with numbers up to `count`. At most `in_flight` clusters are not Ready at a time.
    pub async fn create(&self, shape: &Shape, count: usize, in_flight: usize) -> Result<(), Error> {
        clusters::ensure_namespace(&self.client, &shape.namespace).await?;
        let known: std::collections::HashSet<String> =
            self.clusters.list().iter().map(|cluster| cluster.name_any()).collect();
        let missing: Vec<String> =
            (1..=count).map(clusters::name).filter(|name| !known.contains(name)).collect();
        stream::iter(missing.into_iter().map(Ok::<_, Error>))
            .try_for_each_concurrent(REQUESTS.min(in_flight), |name| async move {
                self.room(&name, in_flight).await;
                clusters::create(&self.client, shape, &name).await
            })
            .await
    }

    /// Waits until another cluster may be created, and counts it.
    async fn room(&self, name: &str, in_flight: usize) {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            {
                let mut progress = self.progress.lock();
                if progress.clusters() - progress.ready() < in_flight {
                    progress.created(name, self.started.elapsed());
                    return;
                }
            }
            let _ = changes.changed().await;
        }
    }

    /// Deletes all clusters and waits until they and all their objects are gone.
    pub async fn delete(&self) -> Result<(), Error> {
        delete_all(&self.client).await?;
        self.until(|progress| progress.clusters() == 0).await;
        Ok(())
    }

    /// Switches off all machines. Their disks are kept for the next fleet.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.datacenter.close().await;
        self.caches.stopped().await;
    }
}

/// Requests the deletion of all clusters of all fleets, whichever process runs their machines.
pub async fn delete_all(client: &Client) -> Result<usize, Error> {
    let all: Api<Cluster> = Api::all(client.clone());
    let params = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
    let found = all.list(&params).await.map_err(Error::api("list Clusters of the fleet"))?.items;
    let count = found.len();
    stream::iter(found.into_iter().map(Ok))
        .try_for_each_concurrent(REQUESTS, |cluster| async move { clusters::delete(client, &cluster).await })
        .await?;
    Ok(count)
}

fn state(cluster: &Cluster) -> State {
    match clusters::failure(cluster) {
        Some(why) => State::Failed(why.to_owned()),
        None if clusters::is_ready(cluster) => State::Ready,
        None => State::Waiting,
    }
}

/// Switches on the machines whose disks exist and that are still in the API. Deletes the other disks.
async fn adopt(client: &Client, datacenter: &Datacenter) -> Result<(), Error> {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &driver::machines());
    let known = all.list_metadata(&ListParams::default()).await.map_err(Error::api("list SimMachines"))?;
    // The driver replaces dots in the names of servers.
    let mut wanted: std::collections::HashSet<String> =
        known.items.iter().map(|machine| machine.name_any().replace('.', "-")).collect();
    let found = datacenter.found().map_err(Error::other("read the disks of the fleet"))?;
    let (kept, left): (Vec<_>, Vec<_>) = found.into_iter().partition(|disk| wanted.remove(&disk.name));
    for disk in left {
        let removed = datacenter.remove(&disk.name).await;
        removed.map_err(Error::other(format!("remove the disk of {}", disk.name)))?;
    }
    stream::iter(kept.iter().map(Ok))
        .try_for_each_concurrent(ADOPTIONS, |disk| async move {
            let adopted = datacenter.adopt(disk).await;
            adopted.map_err(Error::other(format!("switch on machine {}", disk.name)))
        })
        .await
}

/// Whether another process runs the machines of a directory.
pub fn is_locked(dir: &std::path::Path) -> bool {
    let file = std::fs::File::options().write(true).open(dir.join("lock"));
    file.is_ok_and(|file| matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
}

fn lock(dir: &std::path::Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(std::io::Error::other(
            "another `drover sim fleet` runs the machines in this directory; stop it first",
        )),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}
