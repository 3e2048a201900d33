//! The machines of a data directory: create, remove, start, stop. Every operation may be repeated and may be cut off
//! anywhere: the record on disk says what was meant, and the next call carries on from it.
//!
//! One lock per machine (`Slot::op`) orders operations; `Slot::live` guards what others look at and is never held
//! while anything waits.

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
    super::{
        cgroup::{self, Group},
        error::{At, Error, Result},
        layout::{Layout, private_dir, read_json, remove_tree, write_json},
        network::Network,
        protocol::{CreateOptions, EXIT_REBOOT, InitRequest, MachineInfo, Phase, PowerState, Record},
        records,
        validate::validate,
        wire,
    },
    boot::{self, SpawnRequest},
    disk, say,
};

pub(super) struct Machines {
    layout: Layout,
    network: Mutex<Network>,
    only_root: bool,
    spawner: Sender<SpawnRequest>,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
    /// Set when the holder is about to end: nothing new begins.
    closing: AtomicBool,
}

struct Slot {
    op: Mutex<()>,
    live: Mutex<Live>,
    changed: Condvar,
}

struct Live {
    /// `None` before the intent is recorded and after the removal.
    record: Option<Record>,
    power: PowerState,
    pid: Option<i32>,
    error: Option<String>,
    /// No boot may begin or go on.
    halted: bool,
    /// Whether the record on disk has the position of the switch, too.
    switch_noted: bool,
}

impl Machines {
    /// Reads the records of an earlier holder. Its machines ended with it; removals it began are finished.
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
                // The directory was made, the intent was not recorded: nothing else exists.
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

    /// Makes and boots a machine, or adopts the one that is there.
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
            let known = lock(&slot.live).record.clone();
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
            self.note_switch(&slot, false);
            self.boot(&slot)?;
            return self.info(&slot).ok_or_else(|| Error::NotFound(name.to_owned()));
        }
    }

    /// Removes a machine and all that belongs to it; one that is not there is fine. True if there was one.
    pub(super) fn remove(&self, name: &str) -> Result<bool> {
        let Some(slot) = lock(&self.slots).get(name).cloned() else { return Ok(false) };
        // A boot that is under way must not be waited for: without its process it ends by itself.
        {
            let mut live = lock(&slot.live);
            live.halted = true;
            live.signal(Signal::SIGKILL);
        }
        let _op = lock(&slot.op);
        if !self.is_current(name, &slot) {
            return Ok(false);
        }
        if lock(&slot.live).record.is_none() {
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
        match lock(&slot.live).record.as_ref().map(|record| record.phase) {
            Some(Phase::Ready) => (),
            Some(Phase::Creating) => {
                return Err(Error::Invalid(format!(
                    "machine {name} is not complete; create it again to carry on"
                )));
            }
            _ => return Err(Error::NotFound(name.to_owned())),
        }
        self.note_switch(&slot, false);
        self.boot(&slot)?;
        self.info(&slot).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Powers a machine off; with no grace its process 1 is killed at once.
    pub(super) fn stop(&self, name: &str, grace: Duration) -> Result<MachineInfo> {
        let slot = self.slot(name)?;
        let _op = lock(&slot.op);
        self.note_switch(&slot, true);
        self.power_off(&slot, grace);
        self.info(&slot).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    pub(super) fn list(&self) -> Vec<MachineInfo> {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        slots.iter().filter_map(|slot| self.info(slot)).collect()
    }

    /// Whether no machine runs, starts or stops.
    pub(super) fn without_power(&self) -> bool {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        slots.iter().all(|slot| lock(&slot.live).power == PowerState::Stopped)
    }

    pub(super) fn inspect(&self, name: &str) -> Result<MachineInfo> {
        self.info(&*self.slot(name)?).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Powers off every machine, all at once, and lets none start again.
    pub(super) fn shutdown(&self, grace: Duration) {
        let slots: Vec<_> = {
            let slots = lock(&self.slots);
            self.closing.store(true, Ordering::Relaxed);
            slots.values().cloned().collect()
        };
        for slot in &slots {
            lock(&slot.live).halted = true;
        }
        std::thread::scope(|scope| {
            for slot in &slots {
                scope.spawn(move || {
                    self.power_off(slot, grace);
                    self.remove_groups(slot);
                    // What is under way cannot boot any more; after this nobody touches the machine.
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

    /// Allots an address and writes the record before anything else exists.
    fn record_intent(&self, name: &str, options: &CreateOptions, slot: &Slot) -> Result<Record> {
        let slots: Vec<_> = lock(&self.slots).values().cloned().collect();
        let mut network = lock(&self.network);
        let taken: BTreeSet<Ipv4Addr> =
            slots.iter().filter_map(|slot| Some(lock(&slot.live).record.as_ref()?.ip)).collect();
        let ip = network.allot(&taken).ok_or_else(|| {
            Error::Failed("all 4093 addresses of the machines' network are taken".to_owned())
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
        lock(&slot.live).record = Some(record.clone());
        Ok(record)
    }

    fn write_phase(&self, slot: &Slot, phase: Phase) -> Result<()> {
        let Some(mut record) = lock(&slot.live).record.clone() else { return Ok(()) };
        record.phase = phase;
        if phase == Phase::Ready {
            // The script is on the machine's disk now; it may carry a token, so it is not kept twice.
            record.options.install_script = String::new();
        }
        self.write(slot, record)
    }

    /// Notes whether somebody wants the machine off. A disk that is too full for the note keeps nobody from the switch:
    /// this holder knows it all the same, and the next use of the switch tries the note again.
    fn note_switch(&self, slot: &Slot, off: bool) {
        let record = {
            let mut live = lock(&slot.live);
            let noted = live.switch_noted;
            match &mut live.record {
                Some(record) if record.switched_off != off || !noted => {
                    record.switched_off = off;
                    record.clone()
                }
                _ => return,
            }
        };
        let written = write_json(&self.layout.machine(&record.name).record(), &record);
        lock(&slot.live).switch_noted = written.is_ok();
        if let Err(error) = written {
            say(&format!("machine {}: its switch could not be noted: {}", record.name, error.chain()));
        }
    }

    fn write(&self, slot: &Slot, record: Record) -> Result<()> {
        write_json(&self.layout.machine(&record.name).record(), &record)?;
        lock(&slot.live).record = Some(record);
        Ok(())
    }

    /// Boots a machine whose disk is complete, unless it runs. Called with `op` held.
    fn boot(self: &Arc<Self>, slot: &Arc<Slot>) -> Result<()> {
        let record = {
            let mut live = lock(&slot.live);
            let Some(record) = live.record.clone() else { return Ok(()) };
            if live.halted {
                return Err(Error::Failed(format!(
                    "machine {} is being removed or the holder ends",
                    record.name
                )));
            }
            if live.pid.is_some() {
                return Ok(());
            }
            live.power = PowerState::Starting;
            live.error = None;
            record
        };
        let network = lock(&self.network).clone();
        let outcome =
            boot::spawn(&self.layout, &network, self.only_root, &record, &self.spawner).and_then(|booting| {
                lock(&slot.live).pid = Some(booting.pid);
                self.watch(slot.clone(), booting.pid, booting.group().cloned());
                if lock(&slot.live).halted {
                    lock(&slot.live).signal(Signal::SIGKILL);
                }
                booting.finish()
            });
        let mut live = lock(&slot.live);
        match outcome {
            Ok(()) => {
                if live.pid.is_some() {
                    live.power = PowerState::Running;
                }
                say(&format!("machine {} runs", record.name));
                Ok(())
            }
            Err(error) => {
                live.signal(Signal::SIGKILL);
                live.error = Some(error.chain());
                drop(live);
                slot.wait_stopped(None);
                lock(&slot.live).power = PowerState::Stopped;
                say(&format!("machine {}: {}", record.name, error.chain()));
                Err(error)
            }
        }
    }

    /// Waits in a thread of its own for the end of a process 1, and boots again if it asked for that.
    fn watch(self: &Arc<Self>, slot: Arc<Slot>, pid: i32, group: Option<Group>) {
        let machines = self.clone();
        std::thread::spawn(move || {
            let id = || Id::Pid(Pid::from_raw(pid));
            // Looks first and reaps under the lock, so that nobody signals a number that was given to someone else.
            while let Err(nix::errno::Errno::EINTR) =
                waitid(id(), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
            {}
            let reboot = {
                let mut live = lock(&slot.live);
                let status = waitid(id(), WaitPidFlag::WEXITED);
                live.pid = None;
                if let Some(record) = &live.record {
                    say(&format!("machine {} ended: {status:?}", record.name));
                }
                let reboot = matches!(status, Ok(WaitStatus::Exited(_, EXIT_REBOOT))) && !live.halted;
                live.power = if reboot { PowerState::Starting } else { PowerState::Stopped };
                reboot
            };
            slot.changed.notify_all();
            // Only this one: the machine may be starting again.
            if let Some(group) = group {
                cgroup::remove(&group.path);
            }
            if reboot {
                let _op = lock(&slot.op);
                if let Err(error) = machines.boot(&slot) {
                    say(&format!("reboot failed: {}", error.chain()));
                }
            }
        });
    }

    fn power_off(&self, slot: &Slot, grace: Duration) {
        let record = {
            let mut live = lock(&slot.live);
            if live.pid.is_none() {
                return;
            }
            if !grace.is_zero() {
                live.power = PowerState::Stopping;
            }
            live.record.clone()
        };
        if let (Some(record), false) = (&record, grace.is_zero()) {
            let asked = wire::connect(&self.layout.machine(&record.name).control())
                .and_then(|stream| wire::send(&stream, &InitRequest::PowerOff, &[]));
            if asked.is_ok() && slot.wait_stopped(Some(grace)) {
                return;
            }
        }
        lock(&slot.live).signal(Signal::SIGKILL);
        slot.wait_stopped(None);
    }

    /// Removes the control groups of a machine that has ended and cannot start.
    fn remove_groups(&self, slot: &Slot) {
        let name = lock(&slot.live).record.as_ref().map(|record| record.name.clone());
        if let Some(name) = name {
            cgroup::remove_recorded(&self.layout.machine(&name).cgroups());
        }
    }

    /// Called with `op` held and `Deleting` recorded.
    fn finish_removal(&self, name: &str, slot: &Slot) -> Result<()> {
        self.power_off(slot, Duration::ZERO);
        self.remove_groups(slot);
        let record = lock(&slot.live).record.clone();
        if let Some(record) = &record {
            boot::unplug(&lock(&self.network), record);
            // Out of the way in one step, so that a name is either taken or free.
            let trash = self.layout.trash().join(&record.machine_id);
            private_dir(&self.layout.trash())?;
            let machine = self.layout.machine(name);
            match fs::rename(machine.root(), &trash) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => (),
                other => other.at("remove", machine.root())?,
            }
            remove_tree(&trash)?;
            say(&format!("machine {name} is removed"));
        }
        lock(&slot.live).record = None;
        lock(&self.slots).remove(name);
        Ok(())
    }

    fn info(&self, slot: &Slot) -> Option<MachineInfo> {
        let live = lock(&slot.live);
        let machine = records::without_power(&self.layout, live.record.as_ref()?);
        Some(MachineInfo { state: live.power, pid: live.pid, error: live.error.clone(), ..machine })
    }
}

impl Slot {
    fn new(record: Option<Record>) -> Slot {
        let power = PowerState::Stopped;
        let live = Live { record, power, pid: None, error: None, halted: false, switch_noted: true };
        Slot { op: Mutex::new(()), live: Mutex::new(live), changed: Condvar::new() }
    }

    /// Waits until process 1 is gone; false if that takes longer than `limit`.
    fn wait_stopped(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut live = lock(&self.live);
        while live.pid.is_some() {
            let wait =
                deadline.map_or(Duration::from_secs(60), |end| end.saturating_duration_since(Instant::now()));
            if wait.is_zero() {
                return false;
            }
            live = self.changed.wait_timeout(live, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Live {
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
            "machine {} already exists and was made for {:?}",
            record.name, record.uid
        )))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
