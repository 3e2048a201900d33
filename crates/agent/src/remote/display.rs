//! What people see: one log line per changed decision, and the status for `drover-agent status`.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use drover_plan::{ProbeStatus, keys};

use super::{
    Remote,
    decide::{self, Decision, Idle},
    gzip_json,
    observe::Seen,
    report::Report,
    secret::Data,
};
use crate::status::Status;

/// The maximum number of characters of a reason.
const REASON: usize = 500;

impl Remote {
    /// Logs a changed decision.
    pub(super) fn log_decision(&mut self, decision: &Decision) {
        let line = match decision {
            Decision::NoPlan => "waiting for a plan".to_owned(),
            Decision::Apply { .. } => return,
            Decision::Wait(left) => {
                let line = "the plan failed; it will be retried after a pause".to_owned();
                tracing::debug!("retrying in {} s", left.as_secs());
                line
            }
            Decision::Idle(Idle::Applied) => "the plan is applied".to_owned(),
            Decision::Idle(Idle::GivenUp) => {
                "the plan failed the maximum number of times; waiting for a new one".to_owned()
            }
            Decision::Idle(Idle::NotRequested) => {
                "the plan changed, but the server has not requested that it is applied".to_owned()
            }
            Decision::Idle(Idle::Unsupported) => {
                "the plan has a state that this agent does not support".to_owned()
            }
        };
        if self.activity.as_ref() != Some(&line) {
            tracing::info!("{line}");
            self.activity = Some(line);
        }
    }

    pub(super) fn show(&self) {
        let (mut connected, mut trouble, server) = self.link.state();
        if let Some(refused) = self.refused.as_ref().filter(|_| connected) {
            // A watch can continue although requests are rejected.
            connected = !refused.credential;
            trouble = Some(format!("failed to read or write the plan secret: {}", refused.why));
        }
        self.board.show(|status| {
            status.remote = true;
            status.connected = connected;
            status.trouble = trouble.clone();
            status.server = server;
            match &self.seen {
                None if !connected => self.show_left(status),
                seen => self.show_plan(status, seen.as_ref()),
            }
            status.upgrade = self.upgrade.message();
            status.unpublished = !self.pending.is_empty();
            status.waiting_for = if self.running.is_some() {
                Some("applying the plan".into())
            } else if self.blocked {
                Some("waiting for the installer to restart the agent".into())
            } else if self.seen.as_ref().is_some_and(Seen::is_pending) {
                // The last log line is about the previous plan.
                Some(
                    "waiting to start the plan: the API server has not confirmed it as in progress yet"
                        .into(),
                )
            } else if self.seen.is_none() && !connected {
                // There is no known plan, so it is not idle.
                Some(match trouble {
                    Some(trouble) => format!("waiting for the connection: {trouble}"),
                    None => "waiting for the connection".into(),
                })
            } else {
                self.activity.clone()
            };
        });
    }

    fn show_plan(&self, status: &mut Status, seen: Option<&Seen>) {
        let value =
            |key| seen.map(|seen| decide::text(&seen.data, key).to_owned()).filter(|text| !text.is_empty());
        let reported = |status: &Status| {
            (status.plan.clone(), status.failure_count.clone(), status.last_apply_time.clone(), status.before)
        };
        let before = reported(status);
        status.before = false;
        status.plan = seen.and_then(|seen| seen.checksum.clone());
        status.plan_state = value(keys::PLAN_STATE);
        status.plan_revision = value(keys::PLAN_REVISION);
        status.applied_checksum = value(keys::APPLIED_CHECKSUM);
        status.last_apply_time = value(keys::LAST_APPLY_TIME);
        status.failure_count = value(keys::FAILURE_COUNT).filter(|count| count != "0");
        // Decompressed only if it changed.
        if reported(status) != before {
            let failed = status.plan.is_some() && value(keys::FAILED_CHECKSUM) == status.plan;
            status.failure = seen.filter(|_| failed).and_then(|seen| reason(&seen.data));
        }
        let probes = self.prober.statuses().into_iter();
        status.probes = probes.map(|(name, ProbeStatus { healthy, .. })| (name, healthy)).collect();
    }

    /// Nothing was received yet: the status of an earlier process is kept, and its results in the outbox are newer.
    fn show_left(&self, status: &mut Status) {
        let Report { checksum, set, failed_output, .. } = &self.pending;
        if set.is_empty() {
            return;
        }
        let left = |key, shown: &mut Option<String>| {
            if let Some(text) = set.get(key) {
                *shown = Some(text.clone()).filter(|text| !text.is_empty());
            }
        };
        status.before = true;
        status.plan = Some(checksum.clone());
        left(keys::PLAN_STATE, &mut status.plan_state);
        left(keys::PLAN_REVISION, &mut status.plan_revision);
        left(keys::APPLIED_CHECKSUM, &mut status.applied_checksum);
        left(keys::LAST_APPLY_TIME, &mut status.last_apply_time);
        left(keys::FAILURE_COUNT, &mut status.failure_count);
        status.failure_count.take_if(|count| count == "0");
        status.failure = failed_output.as_ref().and_then(why);
    }
}

/// The reported reason of a failed plan.
fn reason(data: &Data) -> Option<String> {
    why(&gzip_json::decode(data.get(keys::FAILED_OUTPUT)))
}

fn why(outputs: &BTreeMap<String, String>) -> Option<String> {
    let error = STANDARD.decode(outputs.get(keys::AGENT_REASON)?).ok()?;
    let error = String::from_utf8_lossy(&error);
    // One line for people; the plan secret contains the whole text.
    let lines: Vec<&str> = error.lines().take(2).collect();
    Some(cut(&lines.join(": "))).filter(|why| !why.is_empty())
}

/// The first words of the text.
fn cut(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(REASON) else { return text.to_owned() };
    let start = &text[..end];
    // A single long update is cut anyway.
    let at = start.rfind(char::is_whitespace).filter(|at| *at > end / 2).unwrap_or(end);
    format!("{} …", start[..at].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_ends_with_a_whole_word() {
        assert_eq!(cut("short and whole"), "short and whole");
        let words = "wörd ".repeat(200);
        let shown = cut(&words);
        assert!(shown.ends_with("wörd …") && shown.chars().count() <= REASON + 2, "{shown}");
        assert_eq!(cut(&"x".repeat(600)), format!("{} …", "x".repeat(REASON)));
    }
}
