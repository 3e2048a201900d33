//! Runs probes on their own schedule: neither an instruction nor another probe delays one.

mod check;
mod go_url;
mod status;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use drover_plan::{Probe, ProbeStatus};
use tokio::{sync::Notify, task::JoinSet, time};

use crate::{duration, host::Host};

/// Statuses by probe.
pub type Statuses = BTreeMap<String, ProbeStatus>;

/// The default interval in seconds; a key of the secret overrides it.
const DEFAULT_PERIOD: u64 = 5;

/// Runs the probes of one plan.
pub struct Prober {
    host: Arc<dyn Host>,
    probes: BTreeMap<String, Probe>,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    statuses: Mutex<Statuses>,
    period: AtomicU64,
    changed: Notify,
    /// Wakes the tasks when the period changes, because the old period can be very long.
    paced: Notify,
}

impl Shared {
    fn statuses(&self) -> std::sync::MutexGuard<'_, Statuses> {
        // The lock is never poisoned.
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prober {
    /// Creates it without probes.
    pub fn new(host: Arc<dyn Host>) -> Self {
        let shared = Shared {
            statuses: Mutex::default(),
            period: AtomicU64::new(DEFAULT_PERIOD),
            changed: Notify::new(),
            paced: Notify::new(),
        };
        Self { host, probes: BTreeMap::new(), shared: Arc::new(shared), tasks: JoinSet::new() }
    }

    /// Sets the interval in seconds; it is kept until it is set again.
    pub fn set_period(&self, seconds: u64) {
        if seconds > 0 && self.shared.period.swap(seconds, Ordering::Relaxed) != seconds {
            self.shared.paced.notify_waiters();
        }
    }

    /// Switches to a set of probes, starting with known statuses. An unchanged set keeps running.
    pub fn follow(&mut self, probes: &BTreeMap<String, Probe>, known: &Statuses) {
        if self.probes == *probes {
            return;
        }
        self.probes.clone_from(probes);
        let statuses = probes.keys().map(|name| (name.clone(), known.get(name).copied().unwrap_or_default()));
        *self.shared.statuses() = statuses.collect();
        self.start(false);
    }

    /// Starts again after a plan was applied: initial delays apply again, and with `forget` healthy probes must succeed
    /// again.
    pub fn restart(&mut self, forget: bool) {
        if forget {
            self.shared.statuses().values_mut().for_each(|status| *status = ProbeStatus::default());
        }
        self.start(true);
    }

    /// The current statuses.
    pub fn statuses(&self) -> Statuses {
        self.shared.statuses().clone()
    }

    /// Waits for a change. Cancel-safe.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    fn start(&mut self, delay: bool) {
        // Stops the tasks of the previous set.
        self.tasks = JoinSet::new();
        for (name, probe) in &self.probes {
            let (name, probe) = (name.clone(), probe.clone());
            let (host, shared) = (self.host.clone(), self.shared.clone());
            self.tasks.spawn(async move {
                if delay && let Some(delay) = duration::positive(probe.initial_delay_seconds) {
                    time::sleep(delay).await;
                }
                watch(host, &name, &probe, &shared).await;
            });
        }
    }
}

async fn watch(host: Arc<dyn Host>, name: &str, probe: &Probe, shared: &Shared) {
    let mut check = check::Check::new(host, &probe.http_get);
    let mut unusable = None;
    loop {
        let started = time::Instant::now();
        let outcome = check.run(probe.timeout_seconds).await;
        // The status does not change, so log it here.
        let now = if let check::Outcome::Unusable(why) = &outcome { Some(why.clone()) } else { None };
        if let Some(why) = now.as_ref().filter(|_| now != unusable) {
            tracing::warn!("failed to evaluate probe {name}: {why}");
        }
        unusable = now;
        let changed = {
            let mut statuses = shared.statuses();
            let Some(status) = statuses.get_mut(name) else { return };
            let next = match &outcome {
                check::Outcome::Unusable(_) => *status,
                check::Outcome::Healthy => status::next(*status, probe, true),
                check::Outcome::Unhealthy(_) => status::next(*status, probe, false),
            };
            let changed = next != *status;
            if next.healthy != status.healthy || (changed && next.failure_count == 1) {
                match &outcome {
                    check::Outcome::Healthy => tracing::info!("probe {name} is healthy"),
                    check::Outcome::Unhealthy(why) => tracing::info!("probe {name} failed: {why}"),
                    check::Outcome::Unusable(_) => {}
                }
            }
            *status = next;
            changed
        };
        if changed {
            shared.changed.notify_one();
        }
        loop {
            let paced = shared.paced.notified();
            let period = duration::seconds(shared.period.load(Ordering::Relaxed));
            tokio::select! {
                () = time::sleep_until(started + period) => break,
                () = paced => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
