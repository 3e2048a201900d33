//! All units of a machine: loading, starting with what they need, stopping, the boot and the end.

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
    super::{
        holder::say,
        protocol::{EXIT_POWER_OFF, EXIT_REBOOT},
    },
    journal, processes,
    reaper::Reaper,
    service::{Kind, Service},
    unit::{ActiveState, Unit},
    units::Units,
};

const NOTIFY: &str = "/run/systemd/notify.d";
/// At power-off, units get this long in all, and what is left of processes a moment.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(10);
const LAST_PATIENCE: Duration = Duration::from_secs(2);

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

    /// Where the programs of a unit say that they are ready: one socket each, so that the sender needs no proof.
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

    /// Starts a unit after what it requires and wants. Returns when the start is decided, or at once if not `block`.
    pub(crate) fn start(self: &Arc<Self>, name: &str, block: bool) -> Result<(), String> {
        self.start_with(name, block, &mut BTreeSet::new())
    }

    fn start_with(
        self: &Arc<Self>,
        name: &str,
        block: bool,
        seen: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        // Targets and sockets group and order things that are always there on a local machine.
        if !name.ends_with(".service") || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let service = self.load(name)?;
        for required in &service.requires {
            self.start_with(required, block, seen)
                .map_err(|error| format!("Unit {name} requires {required}: {error}"))?;
        }
        for wanted in service.wants.iter().filter(|wanted| self.load(wanted).is_ok()) {
            let _ = self.start_with(wanted, block, seen);
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

    /// Starts every enabled unit, each after those it is ordered after.
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

    /// Stops everything and ends process 1, and with it the machine.
    pub(crate) fn end(&self, reboot: bool) -> ! {
        let deadline = Instant::now() + POWER_OFF_PATIENCE;
        let (done, all) = std::sync::mpsc::channel();
        for unit in self.known().into_iter().filter(|unit| unit.seen().active != ActiveState::Inactive) {
            let done = done.clone();
            std::thread::spawn(move || {
                unit.stop();
                drop(done);
            });
        }
        drop(done);
        let wait: Result<(), _> = all.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        if wait == Err(RecvTimeoutError::Timeout) {
            say("some units did not stop in time");
        }
        // -1 means everybody but process 1.
        let _ = kill(Pid::from_raw(-1), Signal::SIGTERM);
        let deadline = Instant::now() + LAST_PATIENCE;
        while Instant::now() < deadline && processes::any_but_init() {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::process::exit(if reboot { EXIT_REBOOT } else { EXIT_POWER_OFF })
    }
}

/// Opens once, for everybody who waits.
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
        // Units that are ordered in a circle wait for the limit once and then start all the same.
        let _ = self.changed.wait_timeout_while(open, limit, |open| !*open);
    }
}
