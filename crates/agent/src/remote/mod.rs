//! The plan secret: watched, decided upon, applied, answered.
//!
//! One task owns all state ([`Remote`]) and takes one event at a time: a new word on the secret, a probe that changed,
//! a pass that ended, a timer. Passes, probes and the connection run beside it, so none of them waits for another.
//! `decide` and `report` are pure; this file only moves values between them.

pub mod api;
pub mod decide;
pub mod gzip_json;
mod link;
mod outbox;
mod publish;
pub mod report;
pub mod secret;
mod tell;

use std::{sync::Arc, time::Duration};

use drover_plan::{Plan, keys};
use jiff::SignedDuration;
use tokio::{
    task::JoinHandle,
    time::{self, Instant},
};

pub use link::{Link, LinkError, Word};

use self::{
    decide::{Decision, Scope, decide},
    outbox::Outbox,
    report::Report,
    secret::{Data, Secret},
};
use crate::{
    apply::{Applier, Blocked, Done, Pass, PeriodicOutputs, periodic},
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
    /// The secret that a predecessor, which became this program, had decided upon already.
    continues: Option<String>,
}

struct Seen {
    uid: String,
    revision: Option<u64>,
    checksum: Option<String>,
    data: Data,
    plan: Option<Held>,
    /// Why the plan cannot be read.
    broken: Option<String>,
}

impl Seen {
    fn is_pending(&self) -> bool {
        decide::state_bytes(&self.data) == Some(b"pending")
    }
}

/// The plan in memory. It can be a megabyte, so once it is applied only probes and periodic instructions are kept.
#[derive(Clone)]
struct Held {
    plan: Arc<Plan>,
    whole: bool,
}

impl Held {
    fn reduced(&self) -> Self {
        let Plan { periodic_instructions, probes, .. } = &*self.plan;
        let plan = Plan {
            periodic_instructions: periodic_instructions.clone(),
            probes: probes.clone(),
            ..Plan::default()
        };
        Self { plan: Arc::new(plan), whole: false }
    }
}

struct Running {
    uid: String,
    checksum: String,
    attempt: Option<i64>,
    /// Probes must prove themselves again afterwards.
    forget: bool,
    task: JoinHandle<Result<Done, Blocked>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
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
            continues,
        }
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
                () = time::sleep(wake) => {}
            }
        }
    }

    /// Takes in the latest word on the secret.
    fn hear(&mut self, word: Word) {
        let Word::Secret { secret, authoritative } = word else {
            if self.seen.take().is_some() {
                tracing::info!("the plan secret was deleted; waiting for it to be made again");
            }
            self.first = true;
            self.prober.follow(&Default::default(), &Default::default());
            return;
        };
        if let Some(seen) = &self.seen
            && seen.uid == secret.uid
            && !authoritative
            && let (Some(old), Some(new)) = (seen.revision, secret.revision())
            && new <= old
        {
            // The watch lags behind what this process read or wrote itself.
            return;
        }
        self.see(*secret);
    }

    fn see(&mut self, mut secret: Secret) {
        let anew = self.seen.as_ref().is_none_or(|seen| seen.uid != secret.uid);
        if anew {
            if self.seen.is_some() {
                tracing::info!("the plan secret was made anew");
            }
            self.first = self.continues.take().is_none_or(|uid| uid != secret.uid);
            self.failed = None;
            self.periodic.clear();
        }
        self.upgrade.hear(secret.annotation(drover_plan::AGENT_OFFER));
        let checksum = secret.plan_checksum();
        let revision = secret.revision();
        let plan_bytes = secret.data.remove(keys::PLAN);
        secret.data.remove(keys::APPLIED_PLAN);
        if self.pending.uid == secret.uid {
            self.pending.lay_onto(&mut secret.data, checksum.as_deref());
        }
        let before = self.seen.take().filter(|seen| seen.uid == secret.uid && seen.checksum == checksum);
        let (mut plan, mut broken) = before.map(|seen| (seen.plan, seen.broken)).unwrap_or_default();
        let now_done = self.is_done(&secret.data, checksum.as_deref());
        let incomplete = plan.as_ref().is_some_and(|held: &Held| !held.whole) && !now_done;
        if (plan.is_none() && broken.is_none()) || incomplete {
            match plan_bytes.as_deref().map(drover_plan::from_slice::<Plan>) {
                None => {}
                Some(Ok(read)) => {
                    let held = Held { plan: Arc::new(read), whole: true };
                    plan = Some(if now_done { held.reduced() } else { held });
                }
                Some(Err(error)) => broken = Some(format!("the plan is not valid JSON: {error}")),
            }
        }
        if let Ok(seconds) = decide::text(&secret.data, keys::PROBE_PERIOD_SECONDS).parse() {
            self.prober.set_period(seconds);
        }
        self.periodic.extend(gzip_json::decode::<PeriodicOutputs>(
            secret.data.get(keys::APPLIED_PERIODIC_OUTPUT).filter(|_| anew),
        ));
        let probes = plan.as_ref().map(|held| held.plan.probes.clone()).unwrap_or_default();
        let known =
            secret.data.get(keys::PROBE_STATUSES).and_then(|bytes| drover_plan::from_slice(bytes).ok());
        self.prober.follow(&probes, &known.unwrap_or_default());
        self.seen = Some(Seen { uid: secret.uid, revision, checksum, data: secret.data, plan, broken });
    }

    fn is_done(&self, data: &Data, checksum: Option<&str>) -> bool {
        matches!(self.judge(data, checksum), Decision::Rest(_) | Decision::NoPlan) && !self.first
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

    /// Starts a pass if one is due; otherwise tells when one may be.
    async fn start(&mut self) -> Option<Duration> {
        let seen = self.seen.as_ref()?;
        if let Some(broken) = &seen.broken {
            return self.refuse(&broken.clone());
        }
        let decision = self.judge(&seen.data, seen.checksum.as_deref());
        self.say(&decision);
        let seen = self.seen.as_ref()?;
        let held = seen.plan.clone()?;
        let checksum = seen.checksum.clone()?;
        let uid = seen.uid.clone();
        let mut pause = None;
        let (attempt, commit) = match decision {
            Decision::NoPlan => return None,
            Decision::Apply { attempt, commit } => (Some(attempt), commit),
            Decision::Wait(left) => {
                pause = Some(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(1)));
                (None, false)
            }
            Decision::Rest(_) => {
                self.first = false;
                if held.whole
                    && let Some(seen) = &mut self.seen
                {
                    seen.plan = Some(held.reduced());
                }
                (None, false)
            }
        };
        if attempt.is_none() {
            let due = self.next_periodic(&held.plan);
            if due.is_none_or(|due| due > Duration::ZERO) {
                return [pause, due].into_iter().flatten().min();
            }
        }
        if self.applier.blocked().is_some() {
            if !self.blocked {
                tracing::info!(
                    "the agent is about to be restarted by its installer; no plan is started until then"
                );
            }
            self.blocked = true;
            return Some(BLOCKED_POLL);
        }
        self.blocked = false;
        if attempt.is_some() && !held.whole {
            // Cannot be: what is not done is kept whole. Should it ever happen, a fresh look brings the plan back.
            if let Some(seen) = &mut self.seen {
                seen.plan = None;
            }
            return self.reread().await;
        }
        if commit && Instant::now() < self.retry.at {
            return Some(self.retry.at.saturating_duration_since(Instant::now()));
        }
        if commit {
            match self.commit(&uid, &checksum).await {
                Ok(true) => self.refused = None,
                Ok(false) => {
                    // The watch tells what came in between, and ends the rest.
                    self.retry.later();
                    return Some(self.retry.at.saturating_duration_since(Instant::now()));
                }
                Err(error) => {
                    self.heed(&error);
                    tracing::warn!("cannot mark the plan as in progress, so it is not started: {error}");
                    self.retry.later();
                    return Some(self.retry.at.saturating_duration_since(Instant::now()));
                }
            }
        }
        let data = &self.seen.as_ref()?.data;
        let forget = attempt.is_some() && decide::text(data, keys::APPLIED_CHECKSUM) != checksum;
        if let Some(attempt) = attempt {
            tracing::info!("applying plan {checksum}, attempt {attempt}");
            self.first = false;
        }
        let pass =
            Pass { plan: held.plan, checksum: checksum.clone(), attempt, periodic: self.periodic.clone() };
        let applier = self.applier.clone();
        let task = tokio::spawn(async move { applier.pass(&pass).await });
        self.running = Some(Running { uid, checksum, attempt, forget, task });
        None
    }

    /// A plan nobody can read has failed, which is told each time that the server asks for it.
    fn refuse(&mut self, why: &str) -> Option<Duration> {
        let seen = self.seen.as_mut()?;
        let checksum = seen.checksum.clone()?;
        let asked = match decide::state_bytes(&seen.data) {
            Some(state) => matches!(state, b"pending" | b"in-progress"),
            None => decide::failures(&seen.data, &checksum) == 0,
        };
        if !asked {
            return None;
        }
        tracing::error!("plan {checksum}: {why}");
        let report = Report::refusal(&seen.uid, &checksum, why, &seen.data, self.host.now());
        report.lay_onto(&mut seen.data, Some(&checksum));
        self.said = Some("the plan cannot be read; waiting for another".into());
        self.keep(report);
        None
    }

    /// How long until a periodic instruction is due.
    fn next_periodic(&self, plan: &Plan) -> Option<Duration> {
        let now = self.host.now();
        plan.periodic_instructions
            .iter()
            .filter(|instruction| !instruction.name.is_empty())
            .map(|instruction| periodic::next_run(instruction, self.periodic.get(&instruction.name), now))
            .min()
            .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default())
    }

    /// A pass ended.
    async fn finish(&mut self, done: Result<Done, Blocked>) {
        let Some(running) = self.running.take() else { return };
        let done = match done {
            Ok(done) => done,
            Err(Blocked { .. }) => {
                self.first |= running.attempt.is_some();
                return;
            }
        };
        self.periodic.extend(done.periodic.clone());
        if running.attempt.is_some() {
            match &done.error {
                None => tracing::info!("plan {} is applied", running.checksum),
                Some(error) => {
                    tracing::error!("plan {} failed: {error}", running.checksum);
                    self.failed = Some((running.checksum.clone(), Instant::now()));
                }
            }
            self.prober.restart(running.forget);
        }
        let Some(seen) = self.seen.as_mut().filter(|seen| seen.uid == running.uid) else { return };
        let report = Report::outcome(
            &running.uid,
            &running.checksum,
            running.attempt,
            done,
            &seen.data,
            self.host.now(),
        );
        let current = seen.checksum.clone();
        report.lay_onto(&mut seen.data, current.as_deref());
        if current.as_ref() == Some(&running.checksum)
            && self
                .seen
                .as_ref()
                .is_some_and(|seen| matches!(self.judge(&seen.data, current.as_deref()), Decision::Rest(_)))
            && let Some(seen) = &mut self.seen
            && let Some(held) = &seen.plan
        {
            seen.plan = Some(held.reduced());
        }
        self.keep(report);
        self.retry.reset();
    }

    fn keep(&mut self, report: Report) {
        self.pending.absorb(report);
        self.outbox.save(&self.pending);
    }

    async fn reread(&mut self) -> Option<Duration> {
        match self.link.api()?.get().await {
            Ok(secret) => {
                self.see(secret);
                Some(Duration::ZERO)
            }
            Err(_) => {
                self.retry.later();
                Some(self.retry.pause)
            }
        }
    }
}

async fn finished(running: &mut Option<Running>) -> Result<Done, Blocked> {
    let Some(running) = running else { return std::future::pending().await };
    match (&mut running.task).await {
        Ok(done) => done,
        Err(error) => Ok(Done { error: Some(format!("the pass broke off: {error}")), ..Done::default() }),
    }
}
