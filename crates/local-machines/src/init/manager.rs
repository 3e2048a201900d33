//! All units of a machine: loads, starts and stops them, and boots and powers off the machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    journal, processes,
    reaper::Reaper,
    service::{Kind, Service},
    unit::{ActiveState, Unit},
    units::Units,
};
use crate::{
    holder::log,
    protocol::{EXIT_POWER_OFF, EXIT_REBOOT},
};

const NOTIFY: &str = "/run/systemd/notify.d";
/// At power-off, time limits for all units together, and then for the remaining processes.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Manager {
    pub(crate) reaper: Reaper,
    pub(crate) only_root: bool,
    pub(crate) hostname: String,
    pub(crate) disk: Units,
    units: Mutex<BTreeMap<String, Arc<Unit>>>,
}

impl Manager {
    pub(crate) fn new(hostname: &str, only_root: bool) -> Arc<Manager> {
        Arc::new(Manager {
            reaper: Reaper::default(),
            only_root,
            hostname: hostname.to_owned(),
            disk: Units::new("/"),
            units: Mutex::default(),
        })
    }

    /// The socket to which the programs of a unit send `READY=1`. Each unit has its own, so that senders need no
    /// authentication.
    pub(crate) fn notify_socket(unit: &str) -> PathBuf {
        PathBuf::from(NOTIFY).join(unit)
    }

    pub(crate) fn unit(&self, name: &str) -> Arc<Unit> {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        units.entry(name.to_owned()).or_insert_with(|| Arc::new(Unit::new(name))).clone()
    }

    pub(crate) fn known(&self) -> Vec<Arc<Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Reads a service from disk.
    pub(crate) fn load(&self, name: &str) -> Result<Service, String> {
        match self.disk.load(name) {
            Err(error) => Err(format!("Unit {name} cannot be read: {error}.")),
            Ok(None) => Err(format!("Unit {name} not found.")),
            Ok(Some(_)) if self.disk.enablement(name) == Some("masked") => {
                Err(format!("Unit {name} is masked."))
            }
            Ok(Some(loaded)) => Service::new(name, &self.hostname, &loaded.file)
                .map_err(|error| format!("Unit {name} has a bad unit file setting: {error}.")),
        }
    }

    /// Starts a unit after the units that it requires and wants. Returns when the start has succeeded or failed, or
    /// immediately if `block` is false.
    pub(crate) fn start(self: &Arc<Self>, name: &str, block: bool) -> Result<(), String> {
        self.start_with(name, block, &mut BTreeSet::new())
    }

    fn start_with(
        self: &Arc<Self>,
        name: &str,
        block: bool,
        visited: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        // Targets and sockets are always available on a local machine.
        if !name.ends_with(".service") || !visited.insert(name.to_owned()) {
            return Ok(());
        }
        let service = self.load(name)?;
        for required in &service.requires {
            self.start_with(required, block, visited)
                .map_err(|error| format!("Unit {name} requires {required}: {error}"))?;
        }
        for wanted in service.wants.iter().filter(|wanted| self.load(wanted).is_ok()) {
            let _ = self.start_with(wanted, block, visited);
        }
        let unit = self.unit(name);
        if service.kind == Kind::Notify {
            self.listen(&unit).map_err(|error| format!("Unit {name} has no notify socket: {error}."))?;
        }
        let outcome = unit.start(self, service);
        if block { outcome.recv().unwrap_or(Ok(())) } else { Ok(()) }
    }

    fn listen(&self, unit: &Arc<Unit>) -> std::io::Result<()> {
        let path = Manager::notify_socket(&unit.name);
        if path.exists() {
            return Ok(());
        }
        fs::create_dir_all(NOTIFY)?;
        let socket = UnixDatagram::bind(&path)?;
        let unit = unit.clone();
        std::thread::spawn(move || {
            let mut buffer = [0u8; 8192];
            while let Ok(length) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                if text.lines().any(|line| line == "READY=1") {
                    unit.ready();
                }
            }
        });
        Ok(())
    }

    pub(crate) fn stop(&self, name: &str) {
        self.unit(name).stop();
    }

    /// Starts every enabled unit after the units that it must start after.
    pub(crate) fn boot(self: &Arc<Self>) {
        let enabled = self.disk.enabled();
        let gates: BTreeMap<String, Arc<Gate>> =
            enabled.iter().map(|name| (name.clone(), Arc::new(Gate::default()))).collect();
        for name in enabled {
            let (manager, gates) = (self.clone(), gates.clone());
            std::thread::spawn(move || {
                let after = manager.load(&name).map(|service| service.after).unwrap_or_default();
                for gate in after.iter().filter(|other| **other != name).filter_map(|other| gates.get(other))
                {
                    gate.wait(Duration::from_secs(90));
                }
                if let Err(error) = manager.start(&name, true) {
                    journal::note(&name, &error);
                }
                if let Some(gate) = gates.get(&name) {
                    gate.open();
                }
            });
        }
    }

    /// Stops all units and exits process 1, which ends the machine.
    pub(crate) fn end(&self, reboot: bool) -> ! {
        let deadline = Instant::now() + POWER_OFF_TIMEOUT;
        let (done, all) = std::sync::mpsc::channel();
        for unit in self.known().into_iter().filter(|unit| unit.status().active != ActiveState::Inactive) {
            let done = done.clone();
            std::thread::spawn(move || {
                unit.stop();
                drop(done);
            });
        }
        drop(done);
        let wait: Result<(), _> = all.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        if wait == Err(RecvTimeoutError::Timeout) {
            log("timed out waiting for units to stop");
        }
        // -1 means all processes but process 1.
        let _ = kill(Pid::from_raw(-1), Signal::SIGTERM);
        let deadline = Instant::now() + KILL_TIMEOUT;
        while Instant::now() < deadline && processes::any_but_init() {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::process::exit(if reboot { EXIT_REBOOT } else { EXIT_POWER_OFF })
    }
}

/// Blocks waiting threads until it is opened once.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: std::sync::Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Units with an ordering cycle start after this time limit.
        let _ = self.changed.wait_timeout_while(open, limit, |open| !*open);
    }
}
