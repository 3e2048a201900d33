//! The machines of a data directory: create, remove, start, stop.
//!
//! Every operation can be interrupted at any point and repeated: the record on disk states the intent, and the next
//! call continues from it. One lock per machine (`Slot::op`) serialises operations. `Slot::state` protects the state
//! that readers see, and is never held during a wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};

use super::{
    boot::{self, SpawnRequest},
    disk, log,
};
use crate::{
    cgroup::{self, Group},
    error::{At, Error, Result},
    layout::{Layout, private_dir, read_json, remove_tree, write_json},
    network::Network,
    protocol::{CreateOptions, EXIT_REBOOT, InitRequest, MachineInfo, Phase, PowerState, Record},
    records,
    validate::validate,
    wire,
};

pub(super) struct Machines {
    layout: Layout,
    network: Mutex<Network>,
    only_root: bool,
    spawner: Sender<SpawnRequest>,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
    /// Set when the holder is about to end: no new operation starts.
    closing: AtomicBool,
}

struct Slot {
    op: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// `None` before the intent is recorded and after the removal.
    record: Option<Record>,
    power: PowerState,
    pid: Option<i32>,
    error: Option<String>,
    /// No boot may start or continue.
    halted: bool,
    /// Whether the record on disk has the same value of `switched_off`.
    switch_recorded: bool,
}

impl Machines {
    /// Reads the records of an earlier holder, whose machines ended with it, and completes its removals.
    pub(super) fn load(
        layout: Layout,
        network: Network,
        only_root: bool,
        spawner: Sender<SpawnRequest>,
    ) -> Result<Arc<Machines>> {
        let mut slots = BTreeMap::new();
        let mut removals = Vec::new();
        for entry in fs::read_dir(layout.machines()).at("list", layout.machines())? {
            let name = entry.at("list", layout.machines())?.file_name().to_string_lossy().into_owned();
            match read_json::<Record>(&layout.machine(&name).record())? {
                // The directory was created but the intent was not recorded, so nothing else exists.
                None => remove_tree(layout.machine(&name).root())?,
                Some(record) => {
                    cgroup::remove_recorded(&layout.machine(&name).cgroups());
                    if record.phase == Phase::Deleting {
                        removals.push(name.clone());
                    }
                    slots.insert(name, Arc::new(Slot::new(Some(record))));
                }
            }
        }
        let slots = Mutex::new(slots);
        let network = Mutex::new(network);
        let closing = AtomicBool::new(false);
        let machines = Machines { layout, network, only_root, spawner, slots, closing };
        for name in removals {
            machines.remove(&name)?;
        }
        Ok(Arc::new(machines))
    }

    /// Creates and boots a machine, or adopts the existing one.
    pub(super) fn create(self: &Arc<Self>, name: &str, options: CreateOptions) -> Result<MachineInfo> {
        validate(name, &options)?;
        loop {
            let slot = {
                let mut slots = lock(&self.slots);
                if self.closing.load(Ordering::Relaxed) {
                    return Err(Error::Failed("the holder is ending".to_owned()));
                }
                slots.entry(name.to_owned()).or_insert_with(|| Arc::new(Slot::new(None))).clone()
            };
            let _op = lock(&slot.op);
            if !self.is_current(name, &slot) {
                continue;
            }
            let known = lock(&slot.state).record.clone();
            let record = match known {
                Some(record) if record.phase == Phase::Deleting => {
                    self.finish_removal(name, &slot)?;
                    continue;
                }
                Some(record) => adopt(record, &options)?,
                None => self.record_intent(name, &options, &slot)?,
            };
            if record.phase == Phase::Creating {
                disk::prepare(&self.layout.machine(name), &record)?;
                self.write_phase(&slot, Phase::Ready)?;
            }
            self.record_switch(&slot, false);
            self.boot(&slot)?;
            return self.info(&slot).ok_or_else(|| Error::NotFound(name.to_owned()));
        }
    }

    /// Removes a machine and everything that belongs to it. Returns false if it does not exist.
    pub(super) fn remove(&self, name: &str) -> Result<bool> {
        let Some(slot) = lock(&self.slots).get(name).cloned() else { return Ok(false) };
        // Do not wait for a boot in progress: without its process it fails.
        {
            let mut state = lock(&slot.state);
            state.halted = true;
            state.signal(Signal::SIGKILL);
        }
        let _op = lock(&slot.op);
        if !self.is_current(name, &slot) {
            return Ok(false);
        }
        if lock(&slot.state).record.is_none() {
            lock(&self.slots).remove(name);
            return Ok(false);
        }
        self.write_phase(&slot, Phase::Deleting)?;
        self.finish_removal(name, &slot)?;
        Ok(true)
    }

    pub(super) fn start(self: &Arc<Self>, name: &str) -> Result<MachineInfo> {
        let slot = self.slot(name)?;
        let _op = lock(&slot.op);
        match lock(&slot.state).record.as_ref().map(|record| record.phase) {
            Some(Phase::Ready) => (),
            Some(Phase::Creating) => {
                return Err(Error::Invalid(format!(
                    "machine {name} is incomplete; create it again to complete it"
                )));
            }
            _ => return Err(Error::NotFound(name.to_owned())),
        }
        self.record_switch(&slot, false);
        self.boot(&slot)?;
        self.info(&slot).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Powers a machine off. Without a grace period, its process 1 is killed immediately.
    pub(super) fn stop(&self, name: &str, grace: Duration) -> Result<MachineInfo> {
        let slot = self.slot(name)?;
        let _op = lock(&slot.op);
        self.record_switch(&slot, true);
        self.power_off(&slot, grace);
        self.info(&slot).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    pub(super) fn list(&self) -> Vec<MachineInfo> {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        slots.iter().filter_map(|slot| self.info(slot)).collect()
    }

    /// Whether all machines are stopped.
    pub(super) fn without_power(&self) -> bool {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        slots.iter().all(|slot| lock(&slot.state).power == PowerState::Stopped)
    }

    pub(super) fn inspect(&self, name: &str) -> Result<MachineInfo> {
        self.info(&*self.slot(name)?).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Powers off all machines in parallel and prevents further starts.
    pub(super) fn shutdown(&self, grace: Duration) {
        let slots: Vec<_> = {
            let slots = lock(&self.slots);
            self.closing.store(true, Ordering::Relaxed);
            slots.values().cloned().collect()
        };
        for slot in &slots {
            lock(&slot.state).halted = true;
        }
        std::thread::scope(|scope| {
            for slot in &slots {
                scope.spawn(move || {
                    self.power_off(slot, grace);
                    self.remove_groups(slot);
                    // An operation in progress cannot boot any more. After this, no thread uses the machine.
                    drop(lock(&slot.op));
                });
            }
        });
    }

    fn slot(&self, name: &str) -> Result<Arc<Slot>> {
        lock(&self.slots).get(name).cloned().ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    fn is_current(&self, name: &str, slot: &Arc<Slot>) -> bool {
        lock(&self.slots).get(name).is_some_and(|current| Arc::ptr_eq(current, slot))
    }

    /// Allocates an address and writes the record before anything else is created.
    fn record_intent(&self, name: &str, options: &CreateOptions, slot: &Slot) -> Result<Record> {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        let mut network = lock(&self.network);
        let taken: BTreeSet<Ipv4Addr> =
            slots.iter().filter_map(|slot| Some(lock(&slot.state).record.as_ref()?.ip)).collect();
        let ip = network.allot(&taken).ok_or_else(|| {
            Error::Failed("all 4093 addresses of the machines' network are in use".to_owned())
        })?;
        network.last = ip;
        write_json(&self.layout.network(), &*network)?;
        let hostname = if options.hostname.is_empty() { name } else { &options.hostname };
        let record = Record {
            name: name.to_owned(),
            uid: options.uid.clone(),
            hostname: hostname.to_owned(),
            machine_id: uuid::Uuid::new_v4().simple().to_string(),
            ip,
            created: jiff::Timestamp::now().to_string(),
            phase: Phase::Creating,
            switched_off: false,
            options: options.clone(),
        };
        let machine = self.layout.machine(name);
        private_dir(machine.root())?;
        write_json(&machine.record(), &record)?;
        lock(&slot.state).record = Some(record.clone());
        Ok(record)
    }

    fn write_phase(&self, slot: &Slot, phase: Phase) -> Result<()> {
        let Some(mut record) = lock(&slot.state).record.clone() else { return Ok(()) };
        record.phase = phase;
        if phase == Phase::Ready {
            // The script is on the machine's disk now. It may contain a token, so no second copy is kept.
            record.options.install_script = String::new();
        }
        self.write(slot, record)
    }

    /// Records whether a user switched the machine off. If the disk is full, the operation continues: this holder keeps
    /// the value in memory, and the next start or stop tries to record it again.
    fn record_switch(&self, slot: &Slot, off: bool) {
        let record = {
            let mut state = lock(&slot.state);
            let recorded = state.switch_recorded;
            match &mut state.record {
                Some(record) if record.switched_off != off || !recorded => {
                    record.switched_off = off;
                    record.clone()
                }
                _ => return,
            }
        };
        let written = write_json(&self.layout.machine(&record.name).record(), &record);
        lock(&slot.state).switch_recorded = written.is_ok();
        if let Err(error) = written {
            log(&format!(
                "machine {}: failed to record that it is switched on or off: {}",
                record.name,
                error.chain()
            ));
        }
    }

    fn write(&self, slot: &Slot, record: Record) -> Result<()> {
        write_json(&self.layout.machine(&record.name).record(), &record)?;
        lock(&slot.state).record = Some(record);
        Ok(())
    }

    /// Boots a machine whose disk is complete, unless it is running. Called with `op` held.
    fn boot(self: &Arc<Self>, slot: &Arc<Slot>) -> Result<()> {
        let record = {
            let mut state = lock(&slot.state);
            let Some(record) = state.record.clone() else { return Ok(()) };
            if state.halted {
                return Err(Error::Failed(format!(
                    "machine {} is being removed, or the holder is ending",
                    record.name
                )));
            }
            if state.pid.is_some() {
                return Ok(());
            }
            state.power = PowerState::Starting;
            state.error = None;
            record
        };
        let network = lock(&self.network).clone();
        let outcome =
            boot::spawn(&self.layout, &network, self.only_root, &record, &self.spawner).and_then(|booting| {
                lock(&slot.state).pid = Some(booting.pid);
                self.watch(slot.clone(), booting.pid, booting.group().cloned());
                if lock(&slot.state).halted {
                    lock(&slot.state).signal(Signal::SIGKILL);
                }
                booting.finish()
            });
        let mut state = lock(&slot.state);
        match outcome {
            Ok(()) => {
                if state.pid.is_some() {
                    state.power = PowerState::Running;
                }
                log(&format!("machine {} is running", record.name));
                Ok(())
            }
            Err(error) => {
                state.signal(Signal::SIGKILL);
                state.error = Some(error.chain());
                drop(state);
                slot.wait_stopped(None);
                lock(&slot.state).power = PowerState::Stopped;
                log(&format!("machine {}: {}", record.name, error.chain()));
                Err(error)
            }
        }
    }

    /// Waits in a new thread until process 1 exits, and boots the machine again if it requested a reboot.
    fn watch(self: &Arc<Self>, slot: Arc<Slot>, pid: i32, group: Option<Group>) {
        let machines = self.clone();
        std::thread::spawn(move || {
            let id = || Id::Pid(Pid::from_raw(pid));
            // Wait without reaping first, then reap under the lock, so that no thread signals a pid that was reused.
            while let Err(nix::errno::Errno::EINTR) =
                waitid(id(), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
            {}
            let reboot = {
                let mut state = lock(&slot.state);
                let status = waitid(id(), WaitPidFlag::WEXITED);
                state.pid = None;
                if let Some(record) = &state.record {
                    log(&format!("machine {} exited: {status:?}", record.name));
                }
                let reboot = matches!(status, Ok(WaitStatus::Exited(_, EXIT_REBOOT))) && !state.halted;
                state.power = if reboot { PowerState::Starting } else { PowerState::Stopped };
                reboot
            };
            slot.changed.notify_all();
            // Only the group of this boot: the machine may be starting again.
            if let Some(group) = group {
                cgroup::remove(&group.path);
            }
            if reboot {
                let _op = lock(&slot.op);
                if let Err(error) = machines.boot(&slot) {
                    log(&format!("failed to reboot: {}", error.chain()));
                }
            }
        });
    }

    fn power_off(&self, slot: &Slot, grace: Duration) {
        let record = {
            let mut state = lock(&slot.state);
            if state.pid.is_none() {
                return;
            }
            if !grace.is_zero() {
                state.power = PowerState::Stopping;
            }
            state.record.clone()
        };
        if let (Some(record), false) = (&record, grace.is_zero()) {
            let asked = wire::connect(&self.layout.machine(&record.name).control())
                .and_then(|stream| wire::send(&stream, &InitRequest::PowerOff, &[]));
            if asked.is_ok() && slot.wait_stopped(Some(grace)) {
                return;
            }
        }
        lock(&slot.state).signal(Signal::SIGKILL);
        slot.wait_stopped(None);
    }

    /// Removes the control groups of a machine that has stopped and cannot start.
    fn remove_groups(&self, slot: &Slot) {
        let name = lock(&slot.state).record.as_ref().map(|record| record.name.clone());
        if let Some(name) = name {
            cgroup::remove_recorded(&self.layout.machine(&name).cgroups());
        }
    }

    /// Called with `op` held and `Deleting` recorded.
    fn finish_removal(&self, name: &str, slot: &Slot) -> Result<()> {
        self.power_off(slot, Duration::ZERO);
        self.remove_groups(slot);
        let record = lock(&slot.state).record.clone();
        if let Some(record) = &record {
            boot::remove_link(&lock(&self.network), record);
            // Moved away atomically, so that a name is either in use or free.
            let trash = self.layout.trash().join(&record.machine_id);
            private_dir(&self.layout.trash())?;
            let machine = self.layout.machine(name);
            match fs::rename(machine.root(), &trash) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => (),
                other => other.at("remove", machine.root())?,
            }
            remove_tree(&trash)?;
            log(&format!("removed machine {name}"));
        }
        lock(&slot.state).record = None;
        lock(&self.slots).remove(name);
        Ok(())
    }

    fn info(&self, slot: &Slot) -> Option<MachineInfo> {
        let state = lock(&slot.state);
        let machine = records::powered_off(&self.layout, state.record.as_ref()?);
        Some(MachineInfo { state: state.power, pid: state.pid, error: state.error.clone(), ..machine })
    }
}

impl Slot {
    fn new(record: Option<Record>) -> Slot {
        let power = PowerState::Stopped;
        let state = State { record, power, pid: None, error: None, halted: false, switch_recorded: true };
        Slot { op: Mutex::new(()), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until process 1 has exited. Returns false on timeout.
    fn wait_stopped(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = lock(&self.state);
        while state.pid.is_some() {
            let wait =
                deadline.map_or(Duration::from_secs(60), |end| end.saturating_duration_since(Instant::now()));
            if wait.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl State {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

fn adopt(record: Record, options: &CreateOptions) -> Result<Record> {
    if options.uid.is_empty() || record.uid == options.uid {
        Ok(record)
    } else {
        Err(Error::Invalid(format!(
            "machine {} already exists and was created for {:?}",
            record.name, record.uid
        )))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is usable: no thread panics while it has changed the state partially.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
