//! Taking in what the secret says now.

use std::sync::Arc;

use drover_plan::{Plan, keys};

use super::{
    Remote, Word,
    decide::{self, Decision},
    gzip_json,
    secret::{Data, Secret},
};
use crate::apply::{PeriodicOutputs, periodic};

/// The secret as last seen, with unpublished results laid onto it.
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) revision: Option<u64>,
    pub(super) checksum: Option<String>,
    pub(super) data: Data,
    pub(super) plan: Option<Held>,
    /// Why the plan cannot be read.
    pub(super) broken: Option<String>,
    /// All of it, as long as it is pending: the commit then needs no second look, which over a slow line counts.
    pub(super) offered: Option<Secret>,
}

impl Seen {
    pub(super) fn is_pending(&self) -> bool {
        decide::state_bytes(&self.data) == Some(b"pending")
    }
}

/// The plan in memory. It can be a megabyte, so once it is applied only probes and periodic instructions are kept.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) plan: Arc<Plan>,
    pub(super) whole: bool,
}

impl Held {
    pub(super) fn reduced(&self) -> Self {
        let Plan { periodic_instructions, probes, .. } = &*self.plan;
        let plan = Plan {
            periodic_instructions: periodic_instructions.clone(),
            probes: probes.clone(),
            ..Plan::default()
        };
        Self { plan: Arc::new(plan), whole: false }
    }
}

impl Remote {
    /// Takes in the latest word on the secret.
    pub(super) fn hear(&mut self, word: Word) {
        let (secret, authoritative) = match word {
            Word::Secret { secret, authoritative } => (secret, authoritative),
            Word::Gone { uid } => return self.hear_gone(uid.as_deref()),
        };
        // Revisions of one secret go on in the next that is made under its name.
        if let Some(seen) = &self.seen
            && let (Some(old), Some(new)) = (seen.revision, secret.revision())
            && (new < old || (new == old && !authoritative))
        {
            // A watch lags behind what this process read or wrote itself. A list was asked for before that, or the server
            // went back to a backup: only another look tells.
            self.doubt |= authoritative;
            return;
        }
        self.see(*secret);
    }

    /// The secret, or the one of this uid, is gone.
    fn hear_gone(&mut self, uid: Option<&str>) {
        if let (Some(uid), Some(seen)) = (uid, &self.seen)
            && seen.uid != uid
        {
            // A watch lags behind: this process has read already what took its place.
            return;
        }
        if self.seen.take().is_some() {
            tracing::info!("the plan secret was deleted; waiting for it to be made again");
        }
        self.said = Some("waiting for the plan secret, which does not exist".into());
        self.first = true;
        self.doubt = false;
        self.prober.follow(&Default::default(), &Default::default());
    }

    pub(super) fn see(&mut self, mut secret: Secret) {
        self.doubt = false;
        let anew = self.seen.as_ref().is_none_or(|seen| seen.uid != secret.uid);
        if anew {
            if self.seen.is_some() {
                tracing::info!("the plan secret was made anew");
            }
            self.first = self.continues.take().is_none_or(|uid| uid != secret.uid);
            self.failed = None;
        }
        self.upgrade.hear(secret.annotation(drover_plan::AGENT_OFFER));
        let checksum = secret.plan_checksum();
        let revision = secret.revision();
        let offered = (decide::state_bytes(&secret.data) == Some(b"pending")).then(|| secret.clone());
        let plan_bytes = secret.data.remove(keys::PLAN);
        secret.data.remove(keys::APPLIED_PLAN);
        let is_applied = |data: &Data| {
            checksum.as_deref().is_some_and(|sum| decide::text(data, keys::APPLIED_CHECKSUM) == sum)
        };
        let told = is_applied(&secret.data);
        if self.pending.uid == secret.uid {
            self.pending.lay_onto(&mut secret.data, checksum.as_deref());
        }
        // A predecessor applied the plan and could not say so: its probes have to prove themselves as after any success.
        let forget = anew && !told && is_applied(&secret.data);
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
        if anew {
            let ran: PeriodicOutputs = gzip_json::decode(secret.data.get(keys::APPLIED_PERIODIC_OUTPUT));
            self.periodic = periodic::without_outputs(&ran);
        }
        let probes = plan.as_ref().map(|held| held.plan.probes.clone()).unwrap_or_default();
        let known = secret.data.get(keys::PROBE_STATUSES).filter(|_| !forget);
        let known = known.and_then(|bytes| drover_plan::from_slice(bytes).ok());
        self.prober.follow(&probes, &known.unwrap_or_default());
        self.seen =
            Some(Seen { uid: secret.uid, revision, checksum, data: secret.data, plan, broken, offered });
    }

    fn is_done(&self, data: &Data, checksum: Option<&str>) -> bool {
        matches!(self.judge(data, checksum), Decision::Rest(_) | Decision::NoPlan) && !self.first
    }
}
