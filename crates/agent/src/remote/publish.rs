//! Publishes results: reads the secret, merges the results, writes it, and repeats this after a conflict.

use std::time::Duration;

use drover_plan::keys;
use tokio::time::Instant;

use super::{
    CONFLICTS, Remote, api, decide,
    probes::{self, ProbeChange},
    report::{self, Report},
    secret::Secret,
};

/// The probes of a plan change their state at nearly the same time.
const TOGETHER: Duration = Duration::from_millis(100);
/// Nothing depends on how often a probe has failed before it changes its state.
const COUNTS: Duration = Duration::from_secs(1);

impl Remote {
    /// Whether the secret lacks results that this process has.
    pub(super) fn has_unpublished(&self) -> bool {
        self.unpublished().is_some()
    }

    /// How long unpublished results may wait for others, which are then written together; none if there are none.
    pub(super) fn unpublished(&self) -> Option<Duration> {
        let seen = self.seen.as_ref()?;
        if !self.pending.is_empty() {
            return Some(Duration::ZERO);
        }
        if seen.is_pending() {
            // The commit that follows reports it.
            return None;
        }
        let lacks_ca = self.cluster_ca.get().is_some_and(|ca| report::lacks_ca(&seen.data, &ca));
        let probes = seen.plan.as_ref().and_then(|_| {
            let known = seen.data.get(keys::PROBE_STATUSES);
            probes::probes_changed(known, &self.prober.statuses(), self.awaits_probes())
        });
        match probes {
            Some(ProbeChange::Health) => Some(TOGETHER),
            _ if lacks_ca => Some(TOGETHER),
            Some(ProbeChange::Counts) => Some(COUNTS),
            None => None,
        }
    }

    /// When unpublished results are due, if there are any.
    pub(super) fn publish_at(&mut self) -> Option<Instant> {
        let patience = self.unpublished();
        if patience.is_none() {
            self.unpublished_since = None;
        }
        patience.map(|patience| *self.unpublished_since.get_or_insert_with(Instant::now) + patience)
    }

    /// Reads the secret, merges all unpublished results, and writes it; repeats this after a conflict.
    pub(super) async fn publish(&mut self) -> Result<(), api::Error> {
        let Some(api) = self.link.api() else { return Ok(()) };
        let mut conflicts = 0;
        loop {
            let mut secret = api.get().await?;
            if self.seen.as_ref().is_none_or(|seen| seen.uid != secret.uid) {
                // The results belong to another secret. Do not wait for the watch, which can be far behind: until then
                // the probes would stay unpublished and be published again immediately.
                self.forget_pending();
                self.accept(secret);
                return Ok(());
            }
            let before = secret.data.clone();
            let checksum = secret.plan_checksum();
            if self.pending.uid == secret.uid {
                self.pending.merge_into(&mut secret.data, checksum.as_deref());
            }
            if checksum.is_some() && checksum == self.seen.as_ref().and_then(|seen| seen.checksum.clone()) {
                probes::set_probes(&mut secret.data, &self.prober.statuses(), self.awaits_probes());
            }
            if let Some(ca) = self.cluster_ca.get() {
                report::set_ca(&mut secret.data, &ca);
            }
            let written = if secret.data == before { Ok(secret) } else { api.put(&secret).await };
            match written {
                Err(error) if error.is_conflict() && conflicts < CONFLICTS => conflicts += 1,
                Err(error) => return Err(error),
                Ok(secret) => {
                    self.forget_pending();
                    self.accept(secret);
                    return Ok(());
                }
            }
        }
    }

    /// Whether there are probes, or can be.
    fn awaits_probes(&self) -> bool {
        let plan = self.seen.as_ref().and_then(|seen| seen.plan.as_ref());
        plan.is_none_or(|loaded| !loaded.plan.probes.is_empty())
    }

    fn forget_pending(&mut self) {
        self.pending = Report::default();
        self.outbox.save(&self.pending);
    }

    /// Writes `in-progress` before anything runs. Returns false if the secret has changed since the decision.
    pub(super) async fn commit(&mut self, uid: &str, checksum: &str) -> Result<bool, api::Error> {
        let Some(api) = self.link.api() else { return Ok(false) };
        let mut offered = self.seen.as_mut().and_then(|seen| seen.offered.take());
        loop {
            let by_watch = offered.is_some();
            let secret = match offered.take() {
                Some(secret) => secret,
                None => api.get().await?,
            };
            let still = secret.uid == uid
                && secret.plan_checksum().as_deref() == Some(checksum)
                && decide::state_bytes(&secret.data) == Some(b"pending");
            if !still {
                self.accept(secret);
                return Ok(false);
            }
            match api.put(&self.committed(secret, checksum)).await {
                Ok(secret) => {
                    self.forget_pending();
                    self.accept(secret);
                    return Ok(true);
                }
                // The watch is behind: decide about the current secret.
                Err(error) if error.is_conflict() && by_watch => {}
                Err(error) if error.is_conflict() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// The secret with its plan in progress.
    fn committed(&self, mut secret: Secret, checksum: &str) -> Secret {
        if self.pending.uid == secret.uid {
            self.pending.merge_into(&mut secret.data, Some(checksum));
        }
        Report::commit(&secret.uid, checksum, &secret.data).merge_into(&mut secret.data, Some(checksum));
        probes::set_probes(&mut secret.data, &self.prober.statuses(), self.awaits_probes());
        if let Some(ca) = self.cluster_ca.get() {
            report::set_ca(&mut secret.data, &ca);
        }
        secret
    }
}
