//! The `Connected` condition of management Clusters: True only after a response through the tunnel.
//!
//! A session that opens or closes causes an immediate probe. Open sessions are probed at intervals, because the API
//! behind an open tunnel may be down. Each time, the recorded endpoint is compared with the one that the session
//! registered, and restored if it was changed.
//!
//! A server that starts has no tunnels. Clusters that were connected before keep their state for a while, so that a
//! restart of the server does not disconnect all clusters.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use drover_api::conditions::cattle::CONNECTED;
use drover_api::management::v3::{Cluster, ClusterStatus};
use drover_api::rke::v1::GenericCondition;
use drover_runtime::apply::Applier;
use drover_runtime::conditions::{FALSE, TRUE, whole_seconds};
use drover_runtime::{Cache, Clock, Controller, Error, Next, ObjectKey, Reconciler};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::acceptor::TunnelAcceptor;
use crate::downstream::Downstreams;

const PROBE_LIMIT: Duration = Duration::from_secs(5);
const PROBE_PERIOD: Duration = Duration::from_secs(15);
/// How long a server waits for tunnels after its start; as long as Cluster API waits for a lost connection.
pub const RETURN_LIMIT: Duration = Duration::from_secs(50);
/// Concurrent probes. They only wait, and the probe of a dead cluster must not delay others.
const PROBES: usize = 1024;

/// Updates `Connected`.
pub struct Connectivity {
    clusters: Cache<Cluster>,
    downstreams: Downstreams,
    acceptor: TunnelAcceptor,
    applier: Applier,
    clock: Arc<dyn Clock>,
    /// Until then, tunnels of the previous server may be opened again.
    patient_until: Timestamp,
    /// Clusters whose tunnel this server has seen: for these, a closed tunnel is reported at once.
    seen: Mutex<HashSet<String>>,
}

impl Connectivity {
    /// `patience` is for clusters that were connected to the previous server.
    pub fn new(
        client: Client,
        clusters: Cache<Cluster>,
        downstreams: Downstreams,
        acceptor: TunnelAcceptor,
        clock: Arc<dyn Clock>,
        patience: Duration,
    ) -> Self {
        let patient_until = clock.now() + patience;
        let applier = Applier::new(client, "access", "connected");
        Self { clusters, downstreams, acceptor, applier, clock, patient_until, seen: Mutex::default() }
    }

    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (clusters, acceptor) = (self.clusters.clone(), self.acceptor.clone());
        let mut changes = self.downstreams.tunnels().changes();
        let controller = Controller::new(self).concurrency(PROBES).reconciles(&clusters);
        let queue = controller.queue();
        let credentials = controller.queue();
        acceptor.registrar().on_credential(move |id| credentials.add(ObjectKey::cluster(id)));
        let follow = async {
            loop {
                match changes.recv().await {
                    Ok(id) => queue.add(ObjectKey::cluster(id)),
                    // Events were lost, so check all clusters.
                    Err(RecvError::Lagged(_)) => {
                        clusters.list().iter().for_each(|cluster| queue.add(ObjectKey::of(cluster.as_ref())));
                    }
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            () = controller.run(stop) => {}
            () = follow => {}
        }
    }

    /// How long a cluster without a tunnel keeps its state.
    fn patience(&self, cluster: &Cluster, id: &str) -> Option<Duration> {
        let mut seen = self.seen.lock();
        if self.downstreams.tunnels().is_connected(id) {
            seen.insert(id.to_owned());
        }
        let left = patience(cluster, self.patient_until, self.clock.now());
        left.filter(|_| !seen.contains(id))
    }

    async fn probe(&self, id: &str) -> Result<(), String> {
        let downstream = self.downstreams.get(id).map_err(|error| error.to_string())?;
        downstream.probe(PROBE_LIMIT).await
    }
}

impl Reconciler for Connectivity {
    const NAME: &'static str = "connected";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let Some(cluster) = self.clusters.get(&key) else {
            self.downstreams.forget(&key.name);
            self.seen.lock().remove(&key.name);
            return Ok(Next::EVENT);
        };
        if cluster.spec.internal || cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Next::EVENT);
        }
        if let Some(left) = self.patience(&cluster, &key.name) {
            return Ok(Next::after(left));
        }
        // Other clients may have changed the record; the open session has the right one.
        self.acceptor.restore(&key.name).await?;
        let answer = self.probe(&key.name).await;
        if let Some(condition) = decide(&cluster, &answer, self.clock.now()) {
            let (text, name) = (transition(&cluster, &condition), &cluster.spec.display_name);
            let mut desired = Cluster::new(&key.name, Default::default());
            desired.status = Some(ClusterStatus { conditions: vec![condition], ..ClusterStatus::default() });
            self.applier.apply_cluster_status(&desired, Some(&cluster)).await?;
            if let Some(text) = text {
                tracing::info!(cluster = key.name, name, "{text}");
            }
        }
        let open = self.downstreams.tunnels().is_connected(&key.name);
        Ok(if open { Next::after(PROBE_PERIOD) } else { Next::EVENT })
    }
}

/// How long a cluster that was connected may stay disconnected before that is reported.
fn patience(cluster: &Cluster, until: Timestamp, now: Timestamp) -> Option<Duration> {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let was_connected = conditions.any(|condition| condition.type_ == CONNECTED && condition.status == TRUE);
    let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
    (was_connected && !left.is_zero()).then_some(left)
}

/// The condition to write, if it has changed. A cluster that was never connected has none.
fn decide(cluster: &Cluster, answer: &Result<(), String>, now: Timestamp) -> Option<GenericCondition> {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let old = conditions.clone().find(|condition| condition.type_ == CONNECTED);
    let (status, reason, message) = match answer {
        Ok(()) => (TRUE, "", String::new()),
        Err(_) if old.is_none() => return None,
        Err(why) => (FALSE, "Disconnected", why.clone()),
    };
    if old.is_some_and(|old| old.status == status && old.reason == reason && old.message == message) {
        return None;
    }
    let now = whole_seconds(now).to_string();
    let since = old.filter(|old| old.status == status).map(|old| old.last_transition_time.clone());
    Some(GenericCondition {
        type_: CONNECTED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or_else(|| now.clone()),
        last_update_time: now,
    })
}

/// The log message for a new condition when the cluster connects or disconnects; none if only the reason changes.
fn transition(cluster: &Cluster, new: &GenericCondition) -> Option<String> {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let mut old = conditions.filter(|condition| condition.type_ == CONNECTED);
    if old.any(|old| old.status == new.status) {
        return None;
    }
    Some(if new.status == TRUE {
        "the cluster is connected".to_owned()
    } else {
        format!("the cluster is disconnected: {}", new.message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(condition: Option<GenericCondition>) -> Cluster {
        let mut cluster = Cluster::new("c-m-1", Default::default());
        cluster.status =
            Some(ClusterStatus { conditions: condition.into_iter().collect(), ..ClusterStatus::default() });
        cluster
    }

    /// The worst case: an agent is lost without a message right after a probe.
    #[test]
    fn access_check_27_a_silent_loss_shows_within_20_seconds_and_fails_requests_within_40() {
        assert!(PROBE_PERIOD + PROBE_LIMIT <= Duration::from_secs(20));
        assert!(crate::downstream::ANSWER_LIMIT <= Duration::from_secs(40));
    }

    #[test]
    fn the_condition_follows_the_probes_and_is_written_only_if_it_changes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let fresh = with(None);
        assert_eq!(decide(&fresh, &Err("no tunnel".into()), at(1)), None, "never connected: no condition");
        let up = decide(&fresh, &Ok(()), at(10)).unwrap();
        assert_eq!((up.status.as_str(), up.last_transition_time.as_str()), ("True", "1970-01-01T00:00:10Z"));
        let connected = with(Some(up));
        assert_eq!(decide(&connected, &Ok(()), at(20)), None);
        let down = decide(&connected, &Err("agent gone".into()), at(30)).unwrap();
        assert_eq!((down.status.as_str(), down.reason.as_str()), ("False", "Disconnected"));
        let again = decide(&with(Some(down.clone())), &Err("other reason".into()), at(40)).unwrap();
        assert_eq!(again.last_transition_time, down.last_transition_time);
        assert_ne!(again.last_update_time, down.last_update_time);
    }

    #[test]
    fn a_new_server_waits_only_for_tunnels_of_the_previous_one() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let up = with(decide(&with(None), &Ok(()), at(10)));
        let down = with(decide(&up, &Err("agent gone".into()), at(20)));
        assert_eq!(patience(&up, at(150), at(100)), Some(Duration::from_secs(50)));
        assert_eq!(patience(&up, at(150), at(150)), None, "it did not reconnect");
        assert_eq!(patience(&up, at(150), at(999)), None);
        assert_eq!(patience(&down, at(150), at(100)), None, "it was lost before");
        assert_eq!(patience(&with(None), at(150), at(100)), None);
    }

    #[test]
    fn the_log_has_a_line_per_connect_and_disconnect() {
        let now = Timestamp::from_second(1).unwrap();
        let log = |cluster: &Cluster, answer: Result<(), String>| {
            let condition = decide(cluster, &answer, now).unwrap();
            (transition(cluster, &condition), with(Some(condition)))
        };
        let (line, up) = log(&with(None), Ok(()));
        assert_eq!(line.as_deref(), Some("the cluster is connected"));
        let (line, down) = log(&up, Err("agent gone".into()));
        assert_eq!(line.as_deref(), Some("the cluster is disconnected: agent gone"));
        let (line, still_down) = log(&down, Err("other reason".into()));
        assert_eq!(line, None);
        let (line, _) = log(&still_down, Ok(()));
        assert_eq!(line.as_deref(), Some("the cluster is connected"));
    }
}
