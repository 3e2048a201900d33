//! The machines of a process, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::bootstrap::Registration;
use crate::machine::{Description, Disk, Machine};
use crate::network::Network;

/// Replaces the program of the simulated distribution in installer images, because the fleet runs it in its own
/// process.
const PROGRAM: &str = "The simulated K3s runs inside the process that simulates this machine.\n";

/// All machines of a process, their disks and their network.
pub struct Datacenter {
    dir: PathBuf,
    disk: Disk,
    network: Arc<Network>,
    machines: Mutex<BTreeMap<String, Arc<AsyncMutex<Option<Machine>>>>>,
    /// The power of machines is cut after these numbers of writes; each number is used once.
    power_cuts: Mutex<Vec<u64>>,
}

impl Datacenter {
    /// Opens a datacenter with its disks in `dir`. `prefix` and `versions` are those of the installer images.
    pub fn open(
        dir: &Path,
        disk: Disk,
        network: Arc<Network>,
        prefix: &str,
        versions: &[&str],
    ) -> Result<Self, drover_sim::Error> {
        let failed = |source| drover_sim::Error::Write { path: dir.to_owned(), source };
        std::fs::create_dir_all(dir.join("machines")).map_err(failed)?;
        let program = dir.join("k3s");
        std::fs::write(&program, PROGRAM).map_err(failed)?;
        drover_sim::install::write_image(&image(dir), &program, prefix, versions)?;
        Ok(Self {
            dir: dir.to_owned(),
            disk,
            network,
            machines: Mutex::default(),
            power_cuts: Mutex::default(),
        })
    }

    /// Finds the disks that an earlier process left.
    pub fn found(&self) -> io::Result<Vec<Description>> {
        let mut found = vec![];
        for entry in std::fs::read_dir(self.dir.join("machines"))? {
            let root = entry?.path();
            match Description::read(&root) {
                Ok(description) => found.push(description),
                // Its creation was interrupted. Its Job runs again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::remove_dir_all(&root)?,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Switches on a machine of an earlier process.
    pub async fn adopt(&self, description: &Description) -> io::Result<()> {
        self.network.claim(description.address);
        self.switch_on_new(description).await.map(|_| ())
    }

    /// Creates and starts a machine. Returns the existing one if there is one.
    pub async fn create(&self, name: &str, hostname: &str, registration: Registration) -> io::Result<IpAddr> {
        let slot = self.machines.lock().get(name).cloned();
        if let Some(slot) = slot
            && let Some(machine) = slot.lock().await.as_ref()
        {
            return Ok(machine.address);
        }
        let address = self.network.allocate()?;
        let description =
            Description { name: name.to_owned(), hostname: hostname.to_owned(), address, registration };
        self.switch_on_new(&description).await
    }

    async fn switch_on_new(&self, description: &Description) -> io::Result<IpAddr> {
        let slot = self.machines.lock().entry(description.name.clone()).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(machine) = slot.as_ref() {
            return Ok(machine.address);
        }
        let root = self.root(&description.name);
        let made = Machine::new(description, &root, self.disk, &image(&self.dir), self.network.clone());
        let mut machine = made.inspect_err(|_| {
            self.machines.lock().remove(&description.name);
            self.network.release(description.address);
        })?;
        self.switch_on(&mut machine).await;
        Ok(slot.insert(machine).address)
    }

    /// Switches a machine off and deletes it. Succeeds if it does not exist.
    pub async fn remove(&self, name: &str) -> io::Result<()> {
        let slot = self.machines.lock().get(name).cloned();
        if let Some(slot) = slot {
            let machine = slot.lock().await.take();
            if let Some(machine) = machine {
                let address = machine.address;
                machine.destroy().await?;
                self.network.release(address);
            }
            self.machines.lock().remove(name);
            return Ok(());
        }
        // Delete the disk of a machine that this process did not switch on.
        match std::fs::remove_dir_all(self.root(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Switches off all machines immediately. Their disks are kept.
    pub async fn close(&self) {
        let machines = std::mem::take(&mut *self.machines.lock());
        let offs = machines.into_values().map(|slot| async move {
            if let Some(machine) = slot.lock().await.as_mut() {
                machine.power_off().await;
            }
        });
        futures::future::join_all(offs).await;
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.machines.lock().keys().cloned().collect()
    }

    /// Calls `act` with a machine. Returns `None` if the machine does not exist.
    pub async fn with<T>(&self, name: &str, act: impl AsyncFnOnce(&mut Machine) -> T) -> Option<T> {
        let slot = self.machines.lock().get(name).cloned()?;
        let mut slot = slot.lock().await;
        Some(act(slot.as_mut()?).await)
    }

    /// Switches a machine off immediately and on again.
    pub async fn power_cycle(&self, name: &str) {
        self.with(name, async |machine| {
            machine.power_off().await;
            machine.power_on().await;
        })
        .await;
    }

    /// From now on, machines lose power after these numbers of writes. Each machine that is switched on takes the next
    /// number.
    pub fn cut_power(&self, mut after_writes: Vec<u64>) {
        after_writes.reverse();
        *self.power_cuts.lock() = after_writes;
    }

    /// The number of power cuts that have not been used.
    pub fn power_cuts_left(&self) -> usize {
        self.power_cuts.lock().len()
    }

    /// Switches on machines that have lost power.
    pub async fn restore_power(&self) {
        let slots: Vec<_> = self.machines.lock().values().cloned().collect();
        for slot in slots {
            let mut slot = slot.lock().await;
            if let Some(machine) = slot.as_mut().filter(|machine| machine.host.is_dead()) {
                machine.power_off().await;
                self.switch_on(machine).await;
            }
        }
    }

    /// Cancels the remaining power cuts, and switches on machines that have lost power.
    pub async fn end_power_cuts(&self) {
        self.power_cuts.lock().clear();
        self.restore_power().await;
        for name in self.names() {
            self.with(&name, async |machine| machine.host.crash_after_writes(u64::MAX)).await;
        }
        self.restore_power().await;
    }

    async fn switch_on(&self, machine: &mut Machine) {
        machine.power_on().await;
        if let Some(writes) = self.power_cuts.lock().pop() {
            machine.host.crash_after_writes(writes);
        }
    }

    fn root(&self, name: &str) -> PathBuf {
        self.dir.join("machines").join(name)
    }
}

fn image(dir: &Path) -> PathBuf {
    dir.join("k3s.tar")
}
