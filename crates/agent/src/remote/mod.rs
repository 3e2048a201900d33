//! Watches the plan secret, decides, applies the plan, and reports.
//!
//! One task owns the whole state ([`Remote`]) and processes one event at a time: a change of the secret, a changed
//! probe, the end of a pass, a timer. Passes, probes and the connection run in parallel, so none of them waits for
//! another.
//! `decide` and `report` are pure; `observe`, `passes` and `publish` only pass values between them.

pub mod api;
pub mod decide;
mod display;
pub mod gzip_json;
mod link;
mod observe;
mod outbox;
mod passes;
mod probes;
mod publish;
pub mod report;
pub mod secret;

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use tokio::time::{self, Instant};

pub use link::{Link, LinkError, Update};

use self::{
    decide::{Decision, Scope, decide},
    observe::Seen,
    outbox::Outbox,
    passes::{Running, finished},
    report::Report,
    secret::Data,
};
use crate::{
    apply::{Applier, PeriodicOutputs},
    cluster_ca::{ClusterCa, Subscription},
    config::Config,
    host::Host,
    probe::Prober,
    status::Board,
    upgrade::Upgrade,
};

/// The first and longest pause between attempts to publish.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(15);
/// How often a blocked interlock is checked: its end should be noticed soon, and a check is cheap.
const BLOCKED_POLL: Duration = Duration::from_secs(1);
/// A timer for lost events.
const IDLE: Duration = Duration::from_secs(600);
/// The number of consecutive conflicts before a pause.
const CONFLICTS: usize = 4;

/// See the module.
pub struct Remote {
    host: Arc<dyn Host>,
    applier: Arc<Applier>,
    link: Arc<Link>,
    board: Arc<Board>,
    outbox: Outbox,
    prober: Prober,
    /// The secret as last seen, including unpublished results, but without the plans.
    seen: Option<Seen>,
    /// A list returned an older secret than this process knows, which can be outdated or restored from a backup.
    doubt: bool,
    /// Results that are not in the secret yet.
    pending: Report,
    /// Since when the secret lacks results that may wait for others.
    unpublished_since: Option<Instant>,
    /// This process has not decided about this secret yet.
    first: bool,
    failed: Option<(String, Instant)>,
    periodic: PeriodicOutputs,
    running: Option<Running>,
    retry: Retry,
    blocked: bool,
    activity: Option<String>,
    /// Why the last request of this task (not of the watch) failed.
    refused: Option<Refused>,
    upgrade: Upgrade,
    /// The CA of the cluster that this machine belongs to, which is reported in the secret.
    cluster_ca: Subscription,
    /// The secret that this process's predecessor, which became this program, had already decided about.
    predecessor: Option<String>,
}

struct Refused {
    why: String,
    /// The credential was rejected.
    credential: bool,
}

struct Retry {
    pause: Duration,
    at: Instant,
}

impl Retry {
    fn reset(&mut self) {
        *self = Self { pause: FIRST_RETRY, at: Instant::now() };
    }

    fn later(&mut self) {
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LAST_RETRY);
    }
}

impl Remote {
    /// Loads the results of an earlier process from the outbox.
    pub fn new(
        host: Arc<dyn Host>,
        config: &Config,
        applier: Arc<Applier>,
        link: Arc<Link>,
        board: Arc<Board>,
    ) -> Self {
        let outbox = Outbox::new(host.clone(), &config.var_dir());
        let pending = outbox.load();
        let upgrade = Upgrade::new(host.clone(), &config.var_dir(), config.pin_agent);
        let predecessor = Upgrade::take_predecessor(&*host, &config.var_dir());
        Self {
            prober: Prober::new(host.clone()),
            host,
            applier,
            link,
            board,
            outbox,
            seen: None,
            doubt: false,
            pending,
            unpublished_since: None,
            first: true,
            failed: None,
            periodic: PeriodicOutputs::new(),
            running: None,
            retry: Retry { pause: FIRST_RETRY, at: Instant::now() },
            blocked: false,
            activity: None,
            refused: None,
            upgrade,
            cluster_ca: ClusterCa::default().subscribe(),
            predecessor,
        }
    }

    /// Also reports the CA of the cluster that this machine belongs to.
    #[must_use]
    pub fn reporting(mut self, cluster_ca: &ClusterCa) -> Self {
        self.cluster_ca = cluster_ca.subscribe();
        self
    }

    /// Runs forever.
    pub async fn run(mut self) {
        loop {
            if let Some(update) = self.link.take() {
                self.observe(update);
                self.retry.reset();
            }
            let mut wake = self.step().await;
            self.show();
            if self.board.is_unwritten() {
                wake = wake.min(LAST_RETRY);
            }
            let link = self.link.clone();
            tokio::select! {
                () = link.changed.notified() => {}
                () = self.prober.changed() => {}
                done = finished(&mut self.running) => self.finish(done).await,
                () = self.upgrade.fetched() => {}
                () = self.cluster_ca.changed() => {}
                () = time::sleep(wake) => {}
            }
        }
    }

    fn judge(&self, data: &Data, checksum: Option<&str>) -> Decision {
        let failed_since = self
            .failed
            .as_ref()
            .filter(|(failed, _)| checksum == Some(failed))
            .and_then(|(_, at)| SignedDuration::try_from(at.elapsed()).ok());
        decide(&Scope { data, checksum, first: self.first, failed_since, now: self.host.now() })
    }

    /// Starts what is due, publishes unpublished results, and returns when to check again.
    async fn step(&mut self) -> Duration {
        let mut wake = IDLE;
        if let Some(pause) = self.settle_doubt().await {
            wake = wake.min(pause);
        }
        if self.running.is_none()
            && let Some(pause) = self.start().await
        {
            wake = wake.min(pause);
        }
        if let Some(due) = self.publish_at() {
            if Instant::now() >= due.max(self.retry.at) {
                match self.publish().await {
                    Ok(()) => {
                        self.refused = None;
                        self.retry.reset();
                    }
                    Err(error) => {
                        self.note_failure(&error);
                        if self.retry.pause == FIRST_RETRY {
                            tracing::warn!("failed to report, keeping the results: {error}");
                        }
                        self.retry.later();
                    }
                }
            }
            if let Some(due) = self.publish_at() {
                let left = due.max(self.retry.at).saturating_duration_since(Instant::now());
                wake = wake.min(left.max(Duration::from_millis(10)));
            }
        }
        if !self.has_unpublished() && self.seen.as_ref().is_none_or(|seen| !seen.is_pending()) {
            // There are no requests that could be rejected.
            self.refused = None;
        }
        if let Some(pause) = self.change_agent().await {
            wake = wake.min(pause);
        }
        wake
    }

    /// Accepts the current secret, even if its revision is older. Until then, the process continues with the known one.
    async fn settle_doubt(&mut self) -> Option<Duration> {
        if !self.doubt {
            return None;
        }
        let left = self.retry.at.saturating_duration_since(Instant::now());
        if left > Duration::ZERO {
            return Some(left);
        }
        self.reread().await
    }

    fn note_failure(&mut self, error: &api::Error) {
        self.link.note_failure(error);
        self.refused = Some(Refused { why: error.to_string(), credential: error.is_unauthorized() });
    }

    /// Performs the next step of an upgrade if no result can be lost; otherwise returns when it can.
    async fn change_agent(&mut self) -> Option<Duration> {
        let due = self.upgrade.due()?;
        let seen = self.seen.as_ref()?;
        let wants_to_apply =
            matches!(self.judge(&seen.data, seen.checksum.as_deref()), Decision::Apply { .. });
        if self.running.is_some() || self.has_unpublished() || (wants_to_apply && seen.broken.is_none()) {
            // Its end wakes this task.
            return None;
        }
        if due > Duration::ZERO {
            return Some(due);
        }
        if !self.upgrade.is_ready() {
            self.upgrade.begin(self.link.api()?);
            return None;
        }
        let uid = seen.uid.clone();
        let applier = self.applier.clone();
        let Some(_hold) = applier.hold() else { return Some(BLOCKED_POLL) };
        self.show();
        self.upgrade.change(Some(&uid)).await;
        self.upgrade.due()
    }
}
