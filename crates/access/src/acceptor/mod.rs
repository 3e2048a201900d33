//! Decides which tunnels are accepted.
//!
//! The holder of a cluster's tunnel acts as that cluster for all users of Drover. So a request passes two steps, and
//! nothing is recorded before both are done:
//!
//! 1. [`TunnelAcceptor::admit`], before the WebSocket is answered: the identity of the caller, and whether its
//!    registration contains the CA that the cluster's control-plane machines reported. A machine is identified by its
//!    own credential. An agent with only a registration token may register an imported cluster; a provisioned one only
//!    if a setting permits it, and never while a registration of a machine exists.
//! 2. [`TunnelAcceptor::serve`], once the WebSocket is open: the registered API must respond through this session
//!    with its CA and credential. Only then are endpoint and credential recorded, and the session is used for requests.

mod sessions;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drover_api::annotations::provisioning::ADMINISTRATED;
use drover_api::management::v3::Cluster;
use drover_apiserver::identity::UserInfo;
use drover_runtime::events::Note;
use drover_runtime::{Cache, Error, ObjectKey};
use drover_tunnel::{Registry, Session};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::authority::Authority;
use crate::downstream::Downstream;
use crate::machines::{Machine, Machines};
use crate::registration::{self, ClusterParams, Refusal, RegisteredBy, Registrar};
use crate::tokens::Tokens;
use sessions::{Accepted, SessionGuard, Sessions};

/// A machine reports its cluster's CA just before it opens the tunnel, so the report may arrive later.
const REPORT_LIMIT: Duration = Duration::from_secs(5);
const REPORT_PERIOD: Duration = Duration::from_millis(50);
/// After this time the peer has received the response to its upgrade, or is gone.
const UPGRADE_LIMIT: Duration = Duration::from_secs(10);
/// A cluster whose API does not respond within this time is not registered; its agent tries again.
const PROOF_LIMIT: Duration = Duration::from_secs(10);
/// A rejected agent tries again every few seconds; it is logged once per period.
const LOG_PERIOD: Duration = Duration::from_secs(600);
/// Reason of the events.
const REFUSED: &str = "TunnelRefused";

/// Accepts tunnels. Clones share it.
#[derive(Clone)]
pub struct TunnelAcceptor {
    inner: Arc<Inner>,
}

struct Inner {
    tokens: Tokens,
    clusters: Cache<Cluster>,
    machines: Arc<dyn Machines>,
    registrar: Registrar,
    sessions: Sessions,
    /// When a rejection of a cluster was logged last.
    logged: Mutex<HashMap<(String, &'static str), Instant>>,
}

/// An admitted tunnel with its registration.
#[derive(Debug)]
pub struct Admitted {
    cluster: String,
    params: ClusterParams,
    by: RegisteredBy,
}

impl TunnelAcceptor {
    pub fn new(
        tokens: Tokens,
        clusters: Cache<Cluster>,
        machines: Arc<dyn Machines>,
        registrar: Registrar,
        tunnels: Registry,
    ) -> Self {
        let (sessions, logged) = (Sessions::new(tunnels), Mutex::default());
        Self { inner: Arc::new(Inner { tokens, clusters, machines, registrar, sessions, logged }) }
    }

    pub(crate) fn registrar(&self) -> &Registrar {
        &self.inner.registrar
    }

    /// Decides about a request before it is answered. `user` is identified by its `Authorization` header.
    pub async fn admit(&self, headers: &HeaderMap, user: Option<&UserInfo>) -> Result<Admitted, Refusal> {
        if !self.inner.machines.is_ready() || !self.inner.clusters.is_synced() {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is still starting"));
        }
        match user.and_then(|user| self.inner.machines.machine_of(user)) {
            Some(machine) => self.admit_machine(headers, machine).await,
            None => self.admit_token(headers),
        }
    }

    async fn admit_machine(&self, headers: &HeaderMap, machine: Machine) -> Result<Admitted, Refusal> {
        let Machine { key, cluster, carries_tunnel } = machine;
        if !carries_tunnel {
            let why = format!(
                "machine {key} may not open the tunnel of its cluster: it has neither the control-plane nor the etcd role"
            );
            return Err(self.reject(&cluster, "role", StatusCode::FORBIDDEN, why));
        }
        if self.inner.clusters.get(&ObjectKey::cluster(&cluster)).is_none() {
            return Err(Refusal::bad("cluster not found"));
        }
        let params = registration::params(headers)?;
        let named = registration::token(headers).and_then(|token| self.inner.tokens.registration(token));
        if named.is_some_and(|named| named.cluster != cluster) {
            let why = format!("machine {key} uses a registration token of another cluster");
            return Err(self.reject(&cluster, "other cluster", StatusCode::FORBIDDEN, why));
        }
        let authority = params.authority().ok_or_else(no_certificate)?;
        let deadline = Instant::now() + REPORT_LIMIT;
        loop {
            let reports = self.inner.machines.authorities(&cluster);
            if authority.is_reported(&reports) {
                return Ok(Admitted { cluster, params, by: RegisteredBy::Machine(key) });
            }
            if Instant::now() >= deadline {
                return Err(self.unreported(&cluster, &format!("machine {key}"), &authority, &reports));
            }
            tokio::time::sleep(REPORT_PERIOD).await;
        }
    }

    fn admit_token(&self, headers: &HeaderMap) -> Result<Admitted, Refusal> {
        let (cluster, params) = registration::identify(headers, &self.inner.tokens)?;
        let live = self.inner.clusters.get(&ObjectKey::cluster(&cluster));
        let live = live.ok_or_else(|| Refusal::bad("cluster not found"))?;
        let authority = params.authority().ok_or_else(no_certificate)?;
        if is_provisioned(&live) {
            if let Some((kind, why)) = self.token_problem(&cluster) {
                return Err(self.reject(&cluster, kind, StatusCode::FORBIDDEN, why));
            }
            let reports = self.inner.machines.authorities(&cluster);
            if !reports.is_empty() && !authority.is_reported(&reports) {
                return Err(self.unreported(
                    &cluster,
                    "an agent with a registration token",
                    &authority,
                    &reports,
                ));
            }
        }
        Ok(Admitted { cluster, params, by: RegisteredBy::Token })
    }

    /// Why a registration token alone does not open the tunnel of this provisioned cluster.
    fn token_problem(&self, cluster: &str) -> Option<(&'static str, String)> {
        if !self.inner.machines.accepts_registration_tokens() {
            let why = "a registration token alone does not open the tunnel of a provisioned cluster: an agent on a \
                       control-plane or etcd machine must present its machine's own credential. To accept cluster \
                       agents that have only the token, set the Setting tunnel-registration-token to true";
            return Some(("token", why.to_owned()));
        }
        let registered = self.registered(cluster).or_else(|| self.inner.sessions.machine_of(cluster));
        let why = |machine: ObjectKey| {
            format!(
                "machine {machine} has registered the cluster; a registration token cannot replace this registration"
            )
        };
        registered.map(|machine| ("registered", why(machine)))
    }

    /// The rejection of a CA that differs from the reported ones, or if none was reported yet.
    fn unreported(&self, cluster: &str, who: &str, registered: &Authority, reports: &[Authority]) -> Refusal {
        let fingerprint = registered.fingerprint();
        if reports.is_empty() {
            let why = format!(
                "{who} registers the cluster with the CA {fingerprint}, but no control-plane machine has reported the \
                 cluster's CA yet"
            );
            return self.reject(cluster, "no authority", StatusCode::SERVICE_UNAVAILABLE, why);
        }
        let known: Vec<_> = reports.iter().map(Authority::fingerprint).collect();
        let why = format!(
            "{who} registers the cluster with the CA {fingerprint}, but its control-plane machines reported {}",
            known.join(", ")
        );
        self.reject(cluster, "authority", StatusCode::FORBIDDEN, why)
    }

    /// Logs it, and records an event of the cluster.
    fn reject(&self, cluster: &str, kind: &'static str, status: StatusCode, why: String) -> Refusal {
        self.report(cluster, kind, &why);
        Refusal::new(status, why)
    }

    fn report(&self, cluster: &str, kind: &'static str, why: &str) {
        self.inner.machines.record_event(cluster, &Note::warning(REFUSED, why).standing());
        let now = Instant::now();
        let last = {
            let mut logged = self.inner.logged.lock();
            if logged.len() == logged.capacity() {
                logged.retain(|_, at| now.duration_since(*at) < LOG_PERIOD);
            }
            logged.insert((cluster.to_owned(), kind), now)
        };
        if last.is_none_or(|last| now.duration_since(last) >= LOG_PERIOD) {
            tracing::warn!(cluster, "tunnel rejected: {why}");
        } else {
            tracing::debug!(cluster, "tunnel rejected: {why}");
        }
    }

    /// Runs an admitted tunnel from its upgrade to its end.
    pub async fn serve(&self, admitted: Admitted, upgraded: hyper::upgrade::OnUpgrade) {
        let cluster = admitted.cluster.clone();
        let upgraded = match tokio::time::timeout(UPGRADE_LIMIT, upgraded).await {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(error)) => return tracing::debug!(cluster, %error, "failed to upgrade a tunnel"),
            Err(_) => return tracing::debug!(cluster, "timed out upgrading a tunnel"),
        };
        let (session, run) = drover_tunnel::server::open_upgraded(upgraded).await;
        tokio::pin!(run);
        let holding = tokio::select! {
            why = &mut run => {
                return tracing::info!(cluster, %why, "the tunnel ended before it was accepted");
            }
            accepted = self.accept(admitted, &session) => match accepted {
                Ok(holding) => holding,
                Err(why) => {
                    self.report(&cluster, "unproven", &why);
                    session.end();
                    run.await;
                    return;
                }
            },
        };
        tracing::info!(cluster, "tunnel opened");
        let why = run.await;
        drop(holding);
        tracing::info!(cluster, %why, "tunnel ended");
    }

    /// Verifies the registered API through the session, records it, and uses the session for requests; otherwise
    /// returns why not.
    async fn accept(&self, admitted: Admitted, session: &Session) -> Result<SessionGuard, String> {
        let Admitted { cluster, params, by } = admitted;
        Downstream::through(session, &cluster, &params)?
            .probe(PROOF_LIMIT)
            .await
            .map_err(|why| format!("the registered API could not be reached through the tunnel: {why}"))?;
        // A machine may have registered in the meantime.
        let provisioned =
            self.inner.clusters.get(&ObjectKey::cluster(&cluster)).is_some_and(|live| is_provisioned(&live));
        if by == RegisteredBy::Token
            && provisioned
            && let Some((_, why)) = self.token_problem(&cluster)
        {
            return Err(why);
        }
        let held = Accepted { by: by.clone(), params: params.clone(), session: session.clone() };
        let mut holding = self.inner.sessions.hold(&cluster, held).ok_or_else(|| {
            "a machine has registered the cluster in the meantime; a registration token cannot replace this registration"
                .to_owned()
        })?;
        // The endpoint is recorded first, so that it exists when the session is used.
        let written = self.record(&cluster, &params, by).await;
        written.map_err(|error| format!("failed to record the registration: {}", error.chain()))?;
        holding.enter();
        Ok(holding)
    }

    /// The first of several machines stays recorded while it exists, because the order after a restart is not worth a
    /// write.
    async fn record(&self, cluster: &str, params: &ClusterParams, by: RegisteredBy) -> Result<(), Error> {
        let noted = match &by {
            RegisteredBy::Machine(_) => self.registered(cluster).map(RegisteredBy::Machine),
            RegisteredBy::Token => None,
        };
        self.inner.registrar.register(cluster, params, &noted.unwrap_or(by)).await
    }

    /// The machine that registered the cluster, if it still exists.
    fn registered(&self, cluster: &str) -> Option<ObjectKey> {
        self.inner.registrar.machine_of(cluster).filter(|key| self.inner.machines.exists(key))
    }

    /// Ends sessions that are no longer permitted, and restores the record of the newest session if it was changed.
    pub(crate) async fn restore(&self, cluster: &str) -> Result<(), Error> {
        let inner = &self.inner;
        let Some(live) = inner.clusters.get(&ObjectKey::cluster(cluster)) else { return Ok(()) };
        if inner.machines.is_ready() {
            let may_stay = |by: &RegisteredBy| match by {
                RegisteredBy::Machine(machine) => inner.machines.exists(machine),
                RegisteredBy::Token => !is_provisioned(&live) || inner.machines.accepts_registration_tokens(),
            };
            for by in inner.sessions.end_unless(cluster, may_stay) {
                tracing::info!(cluster, ?by, "closed the tunnel: its opener is no longer permitted");
            }
        }
        match inner.sessions.newest(cluster) {
            Some((params, by)) => self.record(cluster, &params, by).await,
            None => Ok(()),
        }
    }
}

fn no_certificate() -> Refusal {
    Refusal::bad("X-API-Tunnel-Params: cluster.caCert contains no readable certificate")
}

/// Whether Drover provisions the cluster, and therefore has its machines.
fn is_provisioned(cluster: &Cluster) -> bool {
    let notes = cluster.metadata.annotations.as_ref();
    notes.and_then(|notes| notes.get(ADMINISTRATED)).is_some_and(|value| value == "true")
}
