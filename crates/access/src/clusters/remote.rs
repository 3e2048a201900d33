//! The connection to a cluster with a kubeconfig.
//!
//! One task probes the API. While it responds, the Nodes are watched. A failed probe ends the watch, because a watch
//! on a dead connection would not fail, and the next response starts it again.

use std::sync::Arc;
use std::time::Duration;

use drover_access_api::{ClusterHandle, Disconnected, Why};
use drover_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::health::Health;
use super::watched::Watched;
use super::{ClusterConnections, kubeconfig};
use crate::proxy::root;

const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// A cluster that is reached with a kubeconfig. Dropping it closes the connection.
pub(super) struct Remote {
    cluster: ObjectKey,
    secret: Arc<Secret>,
    state: Arc<Mutex<State>>,
    _guard: DropGuard,
}

struct State {
    health: Health,
    /// While the cluster responds.
    watched: Option<Watched>,
}

impl Remote {
    pub(super) fn start(all: &ClusterConnections, cluster: &ObjectKey, secret: &Arc<Secret>) -> Self {
        let health =
            Health::new(Why::Connecting(cluster.clone()), all.inner.sources.patience, Instant::now());
        let state = Arc::new(Mutex::new(State { health, watched: None }));
        let stop = all.inner.stop.child_token();
        let task = Task {
            all: all.clone(),
            cluster: cluster.clone(),
            secret: secret.clone(),
            state: state.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(task.run());
        Self { cluster: cluster.clone(), secret: secret.clone(), state, _guard: stop.drop_guard() }
    }

    /// Whether it was created with the kubeconfig of this Secret.
    pub(super) fn is_of(&self, secret: &Secret) -> bool {
        kubeconfig::value(&self.secret) == kubeconfig::value(secret)
    }

    pub(super) fn handle(&self) -> Result<ClusterHandle, Disconnected> {
        let state = self.state.lock();
        state.health.state().clone()?;
        let connecting = || Why::Connecting(self.cluster.clone());
        let handle = state.watched.as_ref().ok_or_else(connecting).and_then(Watched::handle);
        handle.map_err(|why| Disconnected { why, expected: true })
    }
}

struct Task {
    all: ClusterConnections,
    cluster: ObjectKey,
    secret: Arc<Secret>,
    state: Arc<Mutex<State>>,
    stop: CancellationToken,
}

impl Task {
    async fn run(self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.probe_forever() => {}
        }
        self.state.lock().watched = None;
    }

    async fn probe_forever(&self) {
        let client = match kubeconfig::client(kubeconfig::value(&self.secret)).await {
            Ok(client) => client,
            Err(cause) => {
                let why = Why::UnusableKubeconfig { secret: ObjectKey::of(self.secret.as_ref()), cause };
                self.record(Err(why), None);
                // Another kubeconfig requires another connection.
                return std::future::pending().await;
            }
        };
        loop {
            let answer = probe(&client, &self.cluster).await;
            let pause = self.record(answer, Some(&client));
            tokio::time::sleep(pause).await;
        }
    }

    fn record(&self, answer: Result<(), Why>, client: Option<&Client>) -> Duration {
        let (changed, pause) = {
            let mut state = self.state.lock();
            let changed = state.health.record(answer, Instant::now());
            if state.health.state().is_err() {
                state.watched = None;
            } else if state.watched.as_ref().is_none_or(|watched| !watched.is_alive())
                && let Some(client) = client
            {
                state.watched = Some(Watched::start(&self.all, &self.cluster, client.clone(), &self.stop));
            }
            (changed, state.health.pause())
        };
        if changed {
            self.all.notify(&self.cluster, None);
        }
        pause
    }
}

/// Requests the version of the API. An API that rejects the credential responds with 401.
async fn probe(client: &Client, cluster: &ObjectKey) -> Result<(), Why> {
    let cluster = cluster.clone();
    let Ok(request) = http::Request::get("/version").body(Vec::new()) else { return Ok(()) };
    match tokio::time::timeout(PROBE_LIMIT, client.request_text(request)).await {
        Err(_) => Err(Why::TimedOut { cluster, limit: PROBE_LIMIT }),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => Err(Why::Unauthorized(cluster)),
        Ok(Err(kube::Error::Api(status))) => Err(Why::BadAnswer { cluster, code: status.code }),
        Ok(Err(error)) => Err(Why::Unreachable { cluster, cause: root(&error) }),
    }
}
