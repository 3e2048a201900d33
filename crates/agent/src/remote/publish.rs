//! Laying what is unsaid onto the secret: read, merge, write, and again if someone else wrote in between.

use drover_plan::keys;

use super::{
    CONFLICTS, Remote, api, decide,
    report::{self, Report},
    secret::{Data, Secret},
};

impl Remote {
    /// Whether the secret lacks something that this process knows.
    pub(super) fn unsaid(&self) -> bool {
        let Some(seen) = &self.seen else { return false };
        if !self.pending.is_empty() {
            return true;
        }
        if seen.is_pending() {
            // The commit that comes next says it.
            return false;
        }
        if self.cluster_ca.known().is_some_and(|ca| report::lacks_ca(&seen.data, &ca)) {
            return true;
        }
        if seen.plan.is_none() {
            return false;
        }
        let mut data = Data::from_iter(
            seen.data.get(keys::PROBE_STATUSES).map(|value| (keys::PROBE_STATUSES.to_owned(), value.clone())),
        );
        let before = data.clone();
        report::lay_probes(&mut data, &self.prober.statuses(), self.awaits_probes());
        data != before
    }

    /// Reads the secret, lays everything unsaid onto it, writes it back; again if someone else wrote in between.
    pub(super) async fn publish(&mut self) -> Result<(), api::Error> {
        let Some(api) = self.link.api() else { return Ok(()) };
        let mut conflicts = 0;
        loop {
            let mut secret = api.get().await?;
            if self.seen.as_ref().is_none_or(|seen| seen.uid != secret.uid) {
                // Another secret than the results are about. Not left to the watch: it may be far behind, and until then
                // the probes would be as unsaid as before and ask again at once.
                self.forget_pending();
                self.see(secret);
                return Ok(());
            }
            let before = secret.data.clone();
            let checksum = secret.plan_checksum();
            if self.pending.uid == secret.uid {
                self.pending.lay_onto(&mut secret.data, checksum.as_deref());
            }
            if checksum.is_some() && checksum == self.seen.as_ref().and_then(|seen| seen.checksum.clone()) {
                report::lay_probes(&mut secret.data, &self.prober.statuses(), self.awaits_probes());
            }
            if let Some(ca) = self.cluster_ca.known() {
                report::lay_ca(&mut secret.data, &ca);
            }
            let written = if secret.data == before { Ok(secret) } else { api.put(&secret).await };
            match written {
                Err(error) if error.is_conflict() && conflicts < CONFLICTS => conflicts += 1,
                Err(error) => return Err(error),
                Ok(secret) => {
                    self.forget_pending();
                    self.see(secret);
                    return Ok(());
                }
            }
        }
    }

    /// Whether there is something to ask, or may be.
    fn awaits_probes(&self) -> bool {
        let plan = self.seen.as_ref().and_then(|seen| seen.plan.as_ref());
        plan.is_none_or(|held| !held.plan.probes.is_empty())
    }

    fn forget_pending(&mut self) {
        self.pending = Report::default();
        self.outbox.save(&self.pending);
    }

    /// Writes `in-progress` before anything runs. False if the secret is no longer what was decided upon.
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
                self.see(secret);
                return Ok(false);
            }
            match api.put(&self.committed(secret, checksum)).await {
                Ok(secret) => {
                    self.forget_pending();
                    self.see(secret);
                    return Ok(true);
                }
                // The watch lags behind: what is there now decides.
                Err(error) if error.is_conflict() && by_watch => {}
                Err(error) if error.is_conflict() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// The secret as it is once its plan is under way.
    fn committed(&self, mut secret: Secret, checksum: &str) -> Secret {
        if self.pending.uid == secret.uid {
            self.pending.lay_onto(&mut secret.data, Some(checksum));
        }
        Report::commit(&secret.uid, checksum, &secret.data).lay_onto(&mut secret.data, Some(checksum));
        report::lay_probes(&mut secret.data, &self.prober.statuses(), self.awaits_probes());
        if let Some(ca) = self.cluster_ca.known() {
            report::lay_ca(&mut secret.data, &ca);
        }
        secret
    }
}
