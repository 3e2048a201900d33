//! Leader election: of several servers only the holder of a Lease is active.
//!
//! A Lease expires after it has been *observed* unchanged for its duration. The times in it are not compared, because
//! clocks differ. A server that loses the Lease must stop at once, which only ending the process guarantees.

use std::time::Duration;

use anyhow::bail;
use drover_runtime::error::{found, is_already_exists, is_conflict};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub const NAMESPACE: &str = "cattle-system";
pub const NAME: &str = "drover-server";

/// How long other servers wait for a leader that does not renew.
const DURATION: Duration = Duration::from_secs(15);
/// The leader stops this much earlier.
const DEADLINE: Duration = Duration::from_secs(10);
const RENEWAL: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(2);
const CALL_LIMIT: Duration = Duration::from_secs(4);

/// A server that wants to become the leader.
#[derive(Clone)]
pub struct Candidate {
    client: Client,
    name: String,
}

/// Leadership, until `lost` is cancelled.
pub struct Leadership {
    candidate: Candidate,
    lost: CancellationToken,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

/// What to do about a Lease that has not changed for a while.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Take,
    /// Another server is the leader; check again after this time.
    Wait(Duration),
}

fn judge(lease: Option<&LeaseSpec>, me: &str, unchanged: Duration) -> Step {
    let holder = lease.and_then(|lease| lease.holder_identity.as_deref()).unwrap_or_default();
    if holder.is_empty() || holder == me {
        return Step::Take;
    }
    let seconds = lease.and_then(|lease| lease.lease_duration_seconds);
    let limit = seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(DURATION, Duration::from_secs);
    match limit.checked_sub(unchanged) {
        Some(left) if !left.is_zero() => Step::Wait(left.min(LOOK)),
        _ => Step::Take,
    }
}

/// The Lease when `me` holds it.
fn held(old: Option<LeaseSpec>, me: &str, now: Timestamp) -> LeaseSpec {
    let old = old.unwrap_or_default();
    let ours = old.holder_identity.as_deref() == Some(me);
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: if ours { old.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(!ours)),
        ..LeaseSpec::default()
    }
}

impl Candidate {
    /// `name` must be unique and stay the same after a restart.
    pub fn new(client: Client, name: &str) -> Self {
        Self { client, name: name.to_owned() }
    }

    /// Waits until this server is the leader. `waiting` is called with the name of the current leader.
    pub async fn lead(self, waiting: impl Fn(&str)) -> Leadership {
        let mut seen: Option<(String, Instant)> = None;
        loop {
            let pause = match self.attempt(&mut seen, &waiting).await {
                Ok(None) => break,
                Ok(Some(pause)) => pause,
                Err(error) => {
                    tracing::warn!(%error, "failed to read or write Lease {NAMESPACE}/{NAME}");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(self.clone().keep(lost.clone(), stop.clone()));
        Leadership { candidate: self, lost, stop, task }
    }

    /// `None` if this server is the leader, otherwise how long to wait.
    async fn attempt(
        &self,
        seen: &mut Option<(String, Instant)>,
        waiting: &impl Fn(&str),
    ) -> anyhow::Result<Option<Duration>> {
        let lease = self.get().await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let version =
            lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone()).unwrap_or_default();
        let since = match seen {
            Some((known, since)) if *known == version => *since,
            _ => seen.insert((version, Instant::now())).1,
        };
        match judge(spec, &self.name, since.elapsed()) {
            Step::Take => Ok(if self.write(lease).await? { None } else { Some(Duration::ZERO) }),
            Step::Wait(pause) => {
                waiting(spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default());
                Ok(Some(pause))
            }
        }
    }

    /// Renews the Lease until stopped, or until another server holds it or may hold it.
    async fn keep(self, lost: CancellationToken, stop: CancellationToken) {
        let mut renewed = Instant::now();
        let mut pause = RENEWAL;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let begun = Instant::now();
            match self.renew().await {
                Ok(true) => (renewed, pause) = (begun, RENEWAL),
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "failed to renew Lease {NAMESPACE}/{NAME}");
                    pause = RETRY;
                }
            }
            if renewed.elapsed() > DEADLINE {
                break;
            }
        }
        lost.cancel();
    }

    /// `false` if another server holds the Lease.
    async fn renew(&self) -> anyhow::Result<bool> {
        let lease = self.get().await?;
        let holder = lease.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.clone());
        if holder.is_some_and(|holder| holder != self.name) {
            return Ok(false);
        }
        if !self.write(lease).await? {
            bail!("it was changed in the meantime");
        }
        Ok(true)
    }

    async fn get(&self) -> anyhow::Result<Option<Lease>> {
        Ok(found(tokio::time::timeout(CALL_LIMIT, self.api().get(NAME)).await?)?)
    }

    /// `false` if another client wrote first.
    async fn write(&self, lease: Option<Lease>) -> anyhow::Result<bool> {
        let (api, params) = (self.api(), PostParams::default());
        let exists = lease.is_some();
        let mut lease = lease.unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() },
            ..Lease::default()
        });
        lease.spec = Some(held(lease.spec.take(), &self.name, Timestamp::now()));
        let written = if exists {
            tokio::time::timeout(CALL_LIMIT, api.replace(NAME, &params, &lease)).await?
        } else {
            tokio::time::timeout(CALL_LIMIT, api.create(&params, &lease)).await?
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) || is_already_exists(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

impl Leadership {
    /// Cancelled when this server is no longer the leader, or may not be.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Releases the Lease, so that another server becomes the leader at once.
    pub async fn release(self) {
        self.stop.cancel();
        let _ = self.task.await;
        if self.lost.is_cancelled() {
            return;
        }
        let freed = async {
            let Some(mut lease) = self.candidate.get().await? else { return Ok(()) };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.candidate.name) {
                spec.holder_identity = Some(String::new());
                let (api, params) = (self.candidate.api(), PostParams::default());
                tokio::time::timeout(CALL_LIMIT, api.replace(NAME, &params, &lease)).await??;
            }
            anyhow::Ok(())
        };
        if let Err(error) = freed.await {
            tracing::warn!(%error, "failed to release Lease {NAMESPACE}/{NAME}; other servers wait until it expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_acquired_if_it_is_unheld_our_own_or_expired() {
        let secs = Duration::from_secs;
        assert_eq!(judge(None, "a", secs(0)), Step::Take);
        assert_eq!(judge(Some(&lease("")), "a", secs(0)), Step::Take);
        assert_eq!(judge(Some(&lease("a")), "a", secs(0)), Step::Take);
        assert_eq!(judge(Some(&lease("b")), "a", secs(0)), Step::Wait(LOOK));
        assert_eq!(judge(Some(&lease("b")), "a", secs(14)), Step::Wait(secs(1)));
        assert_eq!(judge(Some(&lease("b")), "a", secs(15)), Step::Take);
        // A Lease without a duration gets the default one.
        let endless = LeaseSpec { lease_duration_seconds: None, ..lease("b") };
        assert_eq!(judge(Some(&endless), "a", secs(15)), Step::Take);
    }

    #[test]
    fn a_renewal_is_no_transition() {
        let now = Timestamp::from_second(100).unwrap();
        let first = held(None, "a", now);
        assert_eq!(first.lease_transitions, Some(1));
        let later = Timestamp::from_second(105).unwrap();
        let renewed = held(Some(first.clone()), "a", later);
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(1), &first.acquire_time));
        assert_eq!(renewed.renew_time, Some(MicroTime(later)));
        let taken = held(Some(renewed), "b", later);
        assert_eq!((taken.lease_transitions, taken.acquire_time), (Some(2), Some(MicroTime(later))));
    }
}
