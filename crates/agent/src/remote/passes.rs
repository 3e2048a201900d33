//! Starts passes over the plan and processes their results.

use std::time::Duration;

use drover_plan::{Plan, keys};
use tokio::{task::JoinHandle, time::Instant};

use super::{
    BLOCKED_POLL, Remote,
    decide::{self, Decision},
    report::Report,
};
use crate::apply::{Blocked, Done, Pass, periodic};

/// A running pass.
pub(super) struct Running {
    pub(super) uid: String,
    pub(super) checksum: String,
    pub(super) attempt: Option<i64>,
    /// Probes must succeed again afterwards.
    pub(super) forget: bool,
    pub(super) task: JoinHandle<Result<Done, Blocked>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Remote {
    /// Starts a pass if one is due; otherwise returns when one can be.
    pub(super) async fn start(&mut self) -> Option<Duration> {
        let seen = self.seen.as_ref()?;
        if let Some(broken) = &seen.broken {
            return self.refuse(&broken.clone());
        }
        let decision = self.judge(&seen.data, seen.checksum.as_deref());
        self.log_decision(&decision);
        let seen = self.seen.as_ref()?;
        let loaded = seen.plan.clone()?;
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
            Decision::Idle(_) => {
                self.first = false;
                if loaded.whole
                    && let Some(seen) = &mut self.seen
                {
                    seen.plan = Some(loaded.reduced());
                }
                (None, false)
            }
        };
        if attempt.is_none() {
            let due = self.next_periodic(&loaded.plan);
            if due.is_none_or(|due| due > Duration::ZERO) {
                return [pause, due].into_iter().flatten().min();
            }
        }
        if self.applier.blocked().is_some() {
            if !self.blocked {
                tracing::info!(
                    "waiting for the installer to restart the agent; no plan is started until then"
                );
            }
            self.blocked = true;
            return Some(BLOCKED_POLL);
        }
        self.blocked = false;
        if attempt.is_some() && !loaded.whole {
            // This cannot happen, because an unfinished plan is kept whole. If it does, reading the secret again
            // restores the plan.
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
                    // The watch reports later changes and ends the pause.
                    self.retry.later();
                    return Some(self.retry.at.saturating_duration_since(Instant::now()));
                }
                Err(error) => {
                    if self.refused.as_ref().is_none_or(|refused| refused.why != error.to_string()) {
                        tracing::warn!("not starting the plan: failed to mark it as in progress: {error}");
                    }
                    self.note_failure(&error);
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
            Pass { plan: loaded.plan, checksum: checksum.clone(), attempt, periodic: self.periodic.clone() };
        let applier = self.applier.clone();
        let task = tokio::spawn(async move { applier.pass(&pass).await });
        self.running = Some(Running { uid, checksum, attempt, forget, task });
        None
    }

    /// Fails an invalid plan, once for each request of the server.
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
        report.merge_into(&mut seen.data, Some(&checksum));
        self.activity = Some("the plan is invalid; waiting for a new one".into());
        self.keep(report);
        None
    }

    /// The time until a periodic instruction is due.
    fn next_periodic(&self, plan: &Plan) -> Option<Duration> {
        let now = self.host.now();
        plan.periodic_instructions
            .iter()
            .filter(|instruction| !instruction.name.is_empty())
            .map(|instruction| periodic::next_run(instruction, self.periodic.get(&instruction.name), now))
            .min()
            .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default())
    }

    /// Processes the end of a pass.
    pub(super) async fn finish(&mut self, done: Result<Done, Blocked>) {
        let Some(running) = self.running.take() else { return };
        let done = match done {
            Ok(done) => done,
            Err(Blocked { .. }) => {
                self.first |= running.attempt.is_some();
                return;
            }
        };
        self.periodic.extend(periodic::without_outputs(&done.periodic));
        if running.attempt.is_some() {
            match &done.error {
                None => tracing::info!("applied plan {}", running.checksum),
                Some(error) => {
                    tracing::error!("failed to apply plan {}: {error}", running.checksum);
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
        report.merge_into(&mut seen.data, current.as_deref());
        if current.as_ref() == Some(&running.checksum)
            && self
                .seen
                .as_ref()
                .is_some_and(|seen| matches!(self.judge(&seen.data, current.as_deref()), Decision::Idle(_)))
            && let Some(seen) = &mut self.seen
            && let Some(loaded) = &seen.plan
        {
            seen.plan = Some(loaded.reduced());
        }
        self.keep(report);
        self.retry.reset();
    }

    fn keep(&mut self, report: Report) {
        self.pending.absorb(report);
        self.outbox.save(&self.pending);
    }

    pub(super) async fn reread(&mut self) -> Option<Duration> {
        match self.link.api()?.get().await {
            Ok(secret) => {
                self.accept(secret);
                Some(Duration::ZERO)
            }
            Err(_) => {
                self.retry.later();
                Some(self.retry.pause)
            }
        }
    }
}

/// Waits for its end; forever if there is none.
pub(super) async fn finished(running: &mut Option<Running>) -> Result<Done, Blocked> {
    let Some(running) = running else { return std::future::pending().await };
    match (&mut running.task).await {
        Ok(done) => done,
        Err(error) => {
            Ok(Done { error: Some(format!("the pass was interrupted: {error}")), ..Done::default() })
        }
    }
}
