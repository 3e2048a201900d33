//! Powers the machines of a quickstart: they are on while it runs, and off afterwards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use drover_local_machines::{Error, Local, MachineInfo, PowerState};
use drover_server::DataDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::output::drover_at;
use crate::server::own_executable;

/// Interval between checks of the machines.
const CHECK: Duration = Duration::from_secs(3);
/// Longest interval between attempts to power on a machine; it grows with each failure.
const RAREST: Duration = Duration::from_secs(30);
/// How long an interrupted start may hold the store.
const LET_GO: Duration = Duration::from_secs(10);
const LET_GO_LOOK: Duration = Duration::from_millis(50);

/// Keeps machines powered on from [`Power::keep`] to [`Power::end`].
#[derive(Default)]
pub(super) struct Power {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Power {
    /// Powers on machines that stopped because of a kill or a restart of this host. At the start, machines that a
    /// person powered off are powered on as well; later they are left off.
    pub(super) fn keep(&self, machines: impl Machines) {
        self.tasks.spawn(keep(machines, self.stop.clone()));
    }

    /// Returns when no machine is being powered on and none will be. Otherwise a machine that is starting while the
    /// holder stops would be started again by a new holder.
    pub(super) async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Operations on machines; every call blocks.
pub(super) trait Machines: Clone + Send + 'static {
    fn list(&self) -> Result<Vec<MachineInfo>, Error>;
    fn start(&self, name: &str) -> Result<(), Error>;
}

impl Machines for Local {
    fn list(&self) -> Result<Vec<MachineInfo>, Error> {
        Local::list(self)
    }

    fn start(&self, name: &str) -> Result<(), Error> {
        Local::start(self, name).map(drop)
    }
}

async fn keep(machines: impl Machines, stop: CancellationToken) {
    let mut keeper = Keeper::default();
    while !stop.is_cancelled() {
        let (machines, until) = (machines.clone(), stop.clone());
        let pass = tokio::task::spawn_blocking(move || {
            keeper.pass(&machines, Instant::now(), &until);
            keeper
        });
        let Ok(passed) = pass.await else { return };
        keeper = passed;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(CHECK) => {}
        }
    }
}

/// State kept between checks.
#[derive(Default)]
struct Keeper {
    /// The machines were listed once; from then on, machines that a person powers off stay off.
    begun: bool,
    /// The last error in listing them.
    unlisted: Option<String>,
    troubles: BTreeMap<String, Trouble>,
}

/// A machine that failed to power on.
struct Trouble {
    words: String,
    pause: Duration,
    again: Instant,
}

impl Keeper {
    /// Powers on the machines that are off, one after the other, until `stop`. A machine that fails to power on does
    /// not delay the others.
    fn pass(&mut self, machines: &impl Machines, now: Instant, stop: &CancellationToken) {
        let listed = match machines.list() {
            Ok(listed) => listed,
            Err(error) => {
                let words = error.chain();
                if self.unlisted.as_ref() != Some(&words) {
                    tracing::warn!(error = words, "failed to list the machines");
                }
                self.unlisted = Some(words);
                return;
            }
        };
        self.unlisted = None;
        let all = !std::mem::replace(&mut self.begun, true);
        let off =
            |machine: &MachineInfo| machine.state == PowerState::Stopped && (all || !machine.switched_off);
        let off: Vec<&str> =
            listed.iter().filter(|machine| off(machine)).map(|machine| machine.name.as_str()).collect();
        self.troubles.retain(|name, _| off.contains(&name.as_str()));
        for name in off {
            if stop.is_cancelled() {
                return;
            }
            if self.troubles.get(name).is_some_and(|trouble| now < trouble.again) {
                continue;
            }
            if !self.troubles.contains_key(name) {
                tracing::info!(machine = name, "powering on");
            }
            match machines.start(name) {
                // It was removed in the meantime.
                Ok(()) | Err(Error::NotFound(_)) => drop(self.troubles.remove(name)),
                Err(error) => {
                    let words = error.chain();
                    if self.failed(name, &words, now) {
                        tracing::warn!(machine = name, error = words, "failed to power on a machine");
                    }
                }
            }
        }
    }

    /// Records a failure; true if it is a new one.
    fn failed(&mut self, name: &str, words: &str, now: Instant) -> bool {
        let before = self.troubles.get(name);
        let pause = before.map_or(CHECK, |trouble| (trouble.pause * 2).min(RAREST));
        let news = before.is_none_or(|trouble| trouble.words != words);
        let trouble = Trouble { words: words.to_owned(), pause, again: now + pause };
        self.troubles.insert(name.to_owned(), trouble);
        news
    }
}

/// Powers off machines that a killed quickstart left running; true if there were any. Machines under `drover server`
/// are left running.
pub(super) async fn power_off(data_dir: &DataDir) -> anyhow::Result<bool> {
    let Ok(claims) = data_dir.claim() else { return Ok(false) };
    power_off_claimed(data_dir, claims).await
}

/// The same after a quickstart whose start was interrupted.
pub(super) async fn power_off_after_start(data_dir: &DataDir) -> anyhow::Result<bool> {
    let claims = claim_within(data_dir, LET_GO).await?;
    power_off_claimed(data_dir, claims).await
}

/// An interrupted start may take a moment to release the store.
async fn claim_within(data_dir: &DataDir, limit: Duration) -> anyhow::Result<Vec<std::fs::File>> {
    let deadline = Instant::now() + limit;
    loop {
        match data_dir.claim() {
            Ok(claims) => return Ok(claims),
            Err(_) if Instant::now() < deadline => tokio::time::sleep(LET_GO_LOOK).await,
            Err(error) => {
                let stop = drover_at(data_dir, &["quickstart", "--stop"]);
                return Err(
                    error.context(format!("machines may still be running; power them off with `{stop}`"))
                );
            }
        }
    }
}

/// No server can start while the claims are held.
async fn power_off_claimed(data_dir: &DataDir, claims: Vec<std::fs::File>) -> anyhow::Result<bool> {
    let (dir, exe) = (data_dir.path().to_owned(), own_executable()?);
    let off = tokio::task::spawn_blocking(move || {
        let local = Local::attach(&dir, &exe)?;
        let on =
            local.has_machines() && local.list()?.iter().any(|machine| machine.state != PowerState::Stopped);
        local.shutdown_all()?;
        Ok::<_, Error>(on)
    });
    let off = off.await?.context("the machines could not be powered off");
    drop(claims);
    off
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Machines that are all off. Those with "broken" in their names fail to start.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        /// Name, and whether a person powered it off.
        machines: Vec<(&'static str, bool)>,
        unlisted: bool,
        started: Vec<String>,
        /// Cancelled by the first start, which lasts as long as the other end exists.
        on_start: Option<(CancellationToken, std::sync::mpsc::Receiver<()>)>,
    }

    impl Fake {
        fn new(machines: &[(&'static str, bool)]) -> Self {
            let machines = machines.to_vec();
            Self(Arc::new(Mutex::new(State { machines, ..State::default() })))
        }

        fn started(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap().started)
        }
    }

    impl Machines for Fake {
        fn list(&self) -> Result<Vec<MachineInfo>, Error> {
            let state = self.0.lock().unwrap();
            if state.unlisted {
                return Err(Error::Failed("no list".into()));
            }
            let info = |(name, switched_off): &(&str, bool)| {
                serde_json::from_value(serde_json::json!({
                    "name": name, "uid": "", "hostname": name, "ip": "10.200.0.2", "machineId": "0",
                    "state": "Stopped", "switchedOff": switched_off, "install": "None", "created": "",
                    "consoleLog": "",
                }))
                .unwrap()
            };
            Ok(state.machines.iter().map(info).collect())
        }

        fn start(&self, name: &str) -> Result<(), Error> {
            let held = {
                let mut state = self.0.lock().unwrap();
                state.started.push(name.to_owned());
                state.on_start.take()
            };
            if let Some((begun, until)) = held {
                begun.cancel();
                let _ = until.recv();
            }
            if name.contains("broken") { Err(Error::Failed("no".into())) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn no_machine_is_started_after_the_end() {
        let machines = Fake::new(&[("a", false), ("b", false), ("c", false)]);
        let (begun, (hold, until)) = (CancellationToken::new(), std::sync::mpsc::channel());
        machines.0.lock().unwrap().on_start = Some((begun.clone(), until));
        let power = Power::default();
        power.keep(machines.clone());
        begun.cancelled().await;
        let stop = power.stop.clone();
        let ending = tokio::spawn(power.end());
        stop.cancelled().await;
        assert!(!ending.is_finished(), "a start is under way");
        drop(hold);
        ending.await.unwrap();
        assert_eq!(machines.started(), ["a"]);
        assert_eq!(Arc::strong_count(&machines.0), 1, "the machines are still referenced");
    }

    #[test]
    fn machines_that_a_person_powered_off_are_powered_on_only_at_the_start() {
        let (machines, stop, now) =
            (Fake::new(&[("a", false), ("b", true)]), CancellationToken::new(), Instant::now());
        let mut keeper = Keeper::default();
        machines.0.lock().unwrap().unlisted = true;
        keeper.pass(&machines, now, &stop);
        machines.0.lock().unwrap().unlisted = false;
        keeper.pass(&machines, now, &stop);
        assert_eq!(machines.started(), ["a", "b"]);
        keeper.pass(&machines, now, &stop);
        assert_eq!(machines.started(), ["a"], "later they are left off");
    }

    #[test]
    fn failures_to_start_are_logged_once_and_retried_with_growing_intervals() {
        let (machines, stop, begun) =
            (Fake::new(&[("broken", false), ("fine", false)]), CancellationToken::new(), Instant::now());
        let mut keeper = Keeper::default();
        let mut tries = vec![];
        for look in 0..40 {
            let now = begun + look * CHECK;
            keeper.pass(&machines, now, &stop);
            let started = machines.started();
            assert!(started.contains(&"fine".to_owned()), "the other machine is off");
            tries.extend(started.contains(&"broken".to_owned()).then_some(look));
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 25, 35]);
        assert!(!keeper.failed("broken", "no", begun), "the same failure is not new");
        assert!(keeper.failed("broken", "the disk is full", begun));
        assert!(!keeper.failed("broken", "the disk is full", begun));
        // It was started in the meantime, so the next failure is a new one.
        machines.0.lock().unwrap().machines.clear();
        keeper.pass(&machines, begun, &stop);
        assert!(keeper.failed("broken", "the disk is full", begun));
    }

    #[tokio::test]
    async fn a_store_that_is_not_released_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        let held = std::fs::File::create(dir.path().join("lock")).unwrap();
        held.lock().unwrap();
        assert!(!power_off(&data_dir).await.unwrap(), "the machines of a server are left running");
        let refused = claim_within(&data_dir, Duration::from_millis(1)).await.unwrap_err();
        assert!(refused.to_string().contains("quickstart --stop"), "{refused:#}");

        let mut waiting = std::pin::pin!(power_off_after_start(&data_dir));
        tokio::select! {
            biased;
            off = &mut waiting => panic!("it did not wait: {off:?}"),
            () = tokio::task::yield_now() => drop(held),
        }
        assert!(!waiting.await.unwrap(), "nothing was on");
    }
}
