//! What the agent tells people: one log line per change of mind, and the status that `drover-agent status` shows.

use drover_plan::{ProbeStatus, keys};

use super::{
    Remote,
    decide::{self, Decision, Rest},
};

impl Remote {
    /// One line per change of mind.
    pub(super) fn say(&mut self, decision: &Decision) {
        let line = match decision {
            Decision::NoPlan => "waiting for a plan".to_owned(),
            Decision::Apply { .. } => return,
            Decision::Wait(left) => {
                let line = "the plan failed; it is tried again after a rest".to_owned();
                tracing::debug!("{} s left", left.as_secs());
                line
            }
            Decision::Rest(Rest::Applied) => "the plan is applied".to_owned(),
            Decision::Rest(Rest::GivenUp) => {
                "the plan failed as often as it may; waiting for another".to_owned()
            }
            Decision::Rest(Rest::NotAsked) => {
                "the plan changed, but the server has not asked for it to be applied".to_owned()
            }
            Decision::Rest(Rest::Foreign) => "the plan's state is not for this agent to act upon".to_owned(),
        };
        if self.said.as_ref() != Some(&line) {
            tracing::info!("{line}");
            self.said = Some(line);
        }
    }

    pub(super) fn show(&self) {
        let (mut connected, mut trouble, server) = self.link.state();
        if let Some(refused) = self.refused.as_ref().filter(|_| connected) {
            // A watch may go on although nothing else is allowed any more.
            connected = !refused.credential;
            trouble = Some(format!("the plan secret cannot be read or written: {}", refused.why));
        }
        let seen = self.seen.as_ref();
        let value =
            |key| seen.map(|seen| decide::text(&seen.data, key).to_owned()).filter(|text| !text.is_empty());
        self.board.show(|status| {
            status.connected = connected;
            status.trouble = trouble;
            status.server = server;
            status.plan = seen.and_then(|seen| seen.checksum.clone());
            status.plan_state = value(keys::PLAN_STATE);
            status.plan_revision = value(keys::PLAN_REVISION);
            status.applied_checksum = value(keys::APPLIED_CHECKSUM);
            status.last_apply_time = value(keys::LAST_APPLY_TIME);
            status.failure_count = value(keys::FAILURE_COUNT).filter(|count| count != "0");
            status.upgrade = self.upgrade.told();
            status.unpublished = !self.pending.is_empty();
            status.probes = self
                .prober
                .statuses()
                .into_iter()
                .map(|(name, ProbeStatus { healthy, .. })| (name, healthy))
                .collect();
            status.waiting_for = if self.running.is_some() {
                Some("applying the plan".into())
            } else if self.blocked {
                Some("waiting for the installer to restart the agent".into())
            } else {
                self.said.clone()
            };
        });
    }
}
