//! The plan secret: watched, decided upon, applied, answered.
//!
//! One task owns all state ([`Remote`]) and takes one event at a time: a new word on the secret, a probe that changed,
//! a pass that ended, a timer. Passes, probes and the connection run beside it, so none of them waits for another.
//! `decide` and `report` are pure; `hear`, `passes` and `publish` only move values between them.

pub mod api;
pub mod decide;
pub mod gzip_json;
mod hear;
mod link;
mod outbox;
mod passes;
mod publish;
pub mod report;
pub mod secret;
mod tell;

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use tokio::time::{self, Instant};

pub use link::{Link, LinkError, Word};

use self::{
    decide::{Decision, Scope, decide},
    hear::Seen,
    outbox::Outbox,
    passes::{Running, finished},
    report::Report,
    secret::Data,
};
use crate::{
    apply::{Applier, PeriodicOutputs},
    cluster_ca::{ClusterCa, Followed},
    config::Config,
    host::Host,
    probe::Prober,
    status::Board,
    upgrade::Upgrade,
};

/// First and longest pause between attempts to publish.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(15);
/// How often a blocked interlock is looked at again: its end should be noticed soon, and looking is cheap.
const BLOCKED_POLL: Duration = Duration::from_secs(1);
/// A timer that only guards against lost events.
const IDLE: Duration = Duration::from_secs(600);
/// Conflicts in a row before taking a rest.
const CONFLICTS: usize = 4;

/// See the module.
pub struct Remote {
    host: Arc<dyn Host>,
    applier: Arc<Applier>,
    link: Arc<Link>,
    board: Arc<Board>,
    outbox: Outbox,
    prober: Prober,
    /// The secret as last seen, with unpublished results laid onto it; without the plans themselves.
    seen: Option<Seen>,
    /// A list tells of an older secret than this process knows, which may be stale or the truth.
    doubt: bool,
    /// Results that the secret does not hold yet.
    pending: Report,
    /// Nothing was decided yet for this secret by this process.
    first: bool,
    failed: Option<(String, Instant)>,
    periodic: PeriodicOutputs,
    running: Option<Running>,
    retry: Retry,
    blocked: bool,
    said: Option<String>,
    /// Why the last call of this task (not of the watch) failed.
    refused: Option<Refused>,
    upgrade: Upgrade,
    /// The authority of the cluster that this machine serves, to be reported beside the plan.
    cluster_ca: Followed,
    /// The secret that a predecessor, which became this program, had decided upon already.
    continues: Option<String>,
}

struct Refused {
    why: String,
    /// The credential is not accepted.
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
    /// Takes up what a predecessor left in the outbox.
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
        let continues = Upgrade::continues(&*host, &config.var_dir());
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
            first: true,
            failed: None,
            periodic: PeriodicOutputs::new(),
            running: None,
            retry: Retry { pause: FIRST_RETRY, at: Instant::now() },
            blocked: false,
            said: None,
            refused: None,
            upgrade,
            cluster_ca: ClusterCa::default().follow(),
            continues,
        }
    }

    /// Also reports the authority of the cluster that this machine serves.
    #[must_use]
    pub fn reporting(mut self, cluster_ca: &ClusterCa) -> Self {
        self.cluster_ca = cluster_ca.follow();
        self
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        loop {
            if let Some(word) = self.link.take() {
                self.hear(word);
                self.retry.reset();
            }
            let mut wake = self.step().await;
            self.show();
            if self.board.is_owed() {
                wake = wake.min(LAST_RETRY);
            }
            let link = self.link.clone();
            tokio::select! {
                () = link.news.notified() => {}
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

    /// Starts what is due, publishes what is unsaid, and tells when to look again.
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
        if self.unsaid() {
            if Instant::now() >= self.retry.at {
                match self.publish().await {
                    Ok(()) => {
                        self.refused = None;
                        self.retry.reset();
                    }
                    Err(error) => {
                        self.heed(&error);
                        if self.retry.pause == FIRST_RETRY {
                            tracing::warn!("cannot report yet, keeping the results: {error}");
                        }
                        self.retry.later();
                    }
                }
            }
            if self.unsaid() {
                wake = wake.min(
                    self.retry.at.saturating_duration_since(Instant::now()).max(Duration::from_millis(10)),
                );
            }
        }
        if !self.unsaid() && self.seen.as_ref().is_none_or(|seen| !seen.is_pending()) {
            // There is nothing left that could be refused.
            self.refused = None;
        }
        if let Some(pause) = self.change_agent().await {
            wake = wake.min(pause);
        }
        wake
    }

    /// Believes what the secret is now, however old it calls itself. Until then this process goes on with what it knows.
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

    fn heed(&mut self, error: &api::Error) {
        self.link.heed(error);
        self.refused = Some(Refused { why: error.to_string(), credential: error.is_unauthorized() });
    }

    /// Does what is due to become another agent, if nothing is lost by it; otherwise tells when it may be.
    async fn change_agent(&mut self) -> Option<Duration> {
        let due = self.upgrade.due()?;
        let seen = self.seen.as_ref()?;
        let wants_to_apply =
            matches!(self.judge(&seen.data, seen.checksum.as_deref()), Decision::Apply { .. });
        if self.running.is_some() || self.unsaid() || (wants_to_apply && seen.broken.is_none()) {
            // Its end wakes us.
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
