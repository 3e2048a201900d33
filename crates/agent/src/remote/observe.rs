//! Processes a new version of the secret.

use std::sync::Arc;

use drover_plan::{Plan, keys};

use super::{
    Remote, Update,
    decide::{self, Decision},
    gzip_json,
    secret::{Data, Secret},
};
use crate::apply::{PeriodicOutputs, periodic};

/// The secret as last seen, including unpublished results.
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) revision: Option<u64>,
    pub(super) checksum: Option<String>,
    pub(super) data: Data,
    pub(super) plan: Option<LoadedPlan>,
    /// Why the plan is invalid.
    pub(super) broken: Option<String>,
    /// The whole secret while it is pending, so that the commit does not have to read it again over a slow connection.
    pub(super) offered: Option<Secret>,
}

impl Seen {
    pub(super) fn is_pending(&self) -> bool {
        decide::state_bytes(&self.data) == Some(b"pending")
    }
}

/// The plan in memory. It can have one megabyte, so after it was applied, only probes and periodic instructions are
/// kept.
#[derive(Clone)]
pub(super) struct LoadedPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) whole: bool,
}

impl LoadedPlan {
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
    /// Processes the latest state of the secret.
    pub(super) fn observe(&mut self, update: Update) {
        let (secret, authoritative) = match update {
            Update::Secret { secret, authoritative } => (secret, authoritative),
            Update::Deleted { uid } => return self.observe_deleted(uid.as_deref()),
        };
        // Revisions continue in a new secret with the same name.
        if let Some(seen) = &self.seen
            && let (Some(old), Some(new)) = (seen.revision, secret.revision())
            && (new < old || (new == old && !authoritative))
        {
            // A watch can be behind what this process read or wrote. A list is either older than that, or the server
            // was restored from a backup: another read decides.
            self.doubt |= authoritative;
            return;
        }
        self.accept(*secret);
    }

    /// The secret was deleted, or the one with this uid.
    fn observe_deleted(&mut self, uid: Option<&str>) {
        if let (Some(uid), Some(seen)) = (uid, &self.seen)
            && seen.uid != uid
        {
            // The watch is behind: this process already read its replacement.
            return;
        }
        if self.seen.take().is_some() {
            tracing::info!("the plan secret was deleted; waiting for it to be recreated");
        }
        self.activity = Some("waiting for the plan secret, which does not exist".into());
        self.first = true;
        self.doubt = false;
        self.prober.follow(&Default::default(), &Default::default());
    }

    pub(super) fn accept(&mut self, mut secret: Secret) {
        self.doubt = false;
        let is_new = self.seen.as_ref().is_none_or(|seen| seen.uid != secret.uid);
        if is_new {
            if self.seen.is_some() {
                tracing::info!("the plan secret was recreated");
            }
            self.first = self.predecessor.take().is_none_or(|uid| uid != secret.uid);
            self.failed = None;
        }
        self.upgrade.observe(secret.annotation(drover_plan::AGENT_OFFER));
        let checksum = secret.plan_checksum();
        let revision = secret.revision();
        let offered = (decide::state_bytes(&secret.data) == Some(b"pending")).then(|| secret.clone());
        let plan_bytes = secret.data.remove(keys::PLAN);
        secret.data.remove(keys::APPLIED_PLAN);
        let is_applied = |data: &Data| {
            checksum.as_deref().is_some_and(|sum| decide::text(data, keys::APPLIED_CHECKSUM) == sum)
        };
        let reported = is_applied(&secret.data);
        if self.pending.uid == secret.uid {
            self.pending.merge_into(&mut secret.data, checksum.as_deref());
        }
        // An earlier process applied the plan and could not report it: its probes must succeed again, as after any run.
        let forget = is_new && !reported && is_applied(&secret.data);
        let before = self.seen.take().filter(|seen| seen.uid == secret.uid && seen.checksum == checksum);
        let (mut plan, mut broken) = before.map(|seen| (seen.plan, seen.broken)).unwrap_or_default();
        let now_done = self.is_done(&secret.data, checksum.as_deref());
        let incomplete = plan.as_ref().is_some_and(|loaded: &LoadedPlan| !loaded.whole) && !now_done;
        if (plan.is_none() && broken.is_none()) || incomplete {
            match plan_bytes.as_deref().map(drover_plan::from_slice::<Plan>) {
                None => {}
                Some(Ok(read)) => {
                    let loaded = LoadedPlan { plan: Arc::new(read), whole: true };
                    plan = Some(if now_done { loaded.reduced() } else { loaded });
                }
                Some(Err(error)) => broken = Some(format!("the plan is not valid JSON: {error}")),
            }
        }
        if let Ok(seconds) = decide::text(&secret.data, keys::PROBE_PERIOD_SECONDS).parse() {
            self.prober.set_period(seconds);
        }
        if is_new {
            let ran: PeriodicOutputs = gzip_json::decode(secret.data.get(keys::APPLIED_PERIODIC_OUTPUT));
            self.periodic = periodic::without_outputs(&ran);
        }
        let probes = plan.as_ref().map(|loaded| loaded.plan.probes.clone()).unwrap_or_default();
        let known = secret.data.get(keys::PROBE_STATUSES).filter(|_| !forget);
        let known = known.and_then(|bytes| drover_plan::from_slice(bytes).ok());
        self.prober.follow(&probes, &known.unwrap_or_default());
        self.seen =
            Some(Seen { uid: secret.uid, revision, checksum, data: secret.data, plan, broken, offered });
    }

    fn is_done(&self, data: &Data, checksum: Option<&str>) -> bool {
        matches!(self.judge(data, checksum), Decision::Idle(_) | Decision::NoPlan) && !self.first
    }
}
