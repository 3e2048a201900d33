//! Access to all clusters for controllers: the implementation of [`ClusterAccess`].
//!
//! Each cluster has one connection, one set of watches and one health probe. There are two kinds of connections:
//!
//! * A cluster that Drover provisions is used through its tunnel. [`crate::connected`] probes it.
//! * Every other CAPI Cluster is used with the kubeconfig in its Secret `<cluster>-kubeconfig` ([`remote`]). The kubeconfig
//!   of a provisioned cluster points to Drover's own proxy and is never used here.
//!
//! All decisions are in [`ClusterConnections::refresh`], which every event about a cluster calls.

mod health;
mod kubeconfig;
mod remote;
mod watched;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use drover_access_api::{
    ClusterAccess, ClusterChange, ClusterHandle, Disconnected, Listener, ManagementIds, Why,
};
use drover_api::capi::v1beta2 as capi;
use drover_api::conditions::cattle::CONNECTED;
use drover_api::management::v3 as management;
use drover_api::provisioning::v1 as provisioning;
use drover_runtime::{Cache, Change, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Secret};
use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::downstream::{Downstream, Downstreams};
use crate::registration::{CREDENTIAL_NAMESPACE, CREDENTIAL_PREFIX};
use crate::tokens::KUBECONFIG_SECRET_SUFFIX;
use remote::Remote;
use watched::Watched;

/// All connections. Clones share them.
#[derive(Clone)]
pub struct ClusterConnections {
    inner: Arc<Inner>,
}

struct Inner {
    sources: Sources,
    connections: Mutex<HashMap<ObjectKey, Connection>>,
    listeners: RwLock<Vec<Listener>>,
    stop: CancellationToken,
}

/// The sources of clusters and their credentials.
pub struct Sources {
    pub downstreams: Downstreams,
    pub ids: ManagementIds,
    pub twins: Cache<management::Cluster>,
    pub provisioned: Cache<provisioning::Cluster>,
    pub clusters: Cache<capi::Cluster>,
    pub secrets: Cache<Secret>,
    /// How long a cluster that does not respond keeps its last state.
    pub patience: Duration,
}

enum Connection {
    Tunnel(Box<Downstream>, Watched),
    Kubeconfig(Remote),
}

/// The connection that a cluster should have.
enum Backend {
    /// The tunnel of the management Cluster, once it exists.
    Tunnel(Option<String>),
    Kubeconfig(Arc<Secret>),
    /// None.
    Missing(Why),
}

impl Sources {
    fn are_synced(&self) -> bool {
        self.twins.is_synced()
            && self.provisioned.is_synced()
            && self.clusters.is_synced()
            && self.secrets.is_synced()
    }

    async fn synced(&self) {
        tokio::join!(
            self.twins.synced(),
            self.provisioned.synced(),
            self.clusters.synced(),
            self.secrets.synced()
        );
    }

    fn backend(&self, key: &ObjectKey) -> Backend {
        if self.provisioned.get(key).is_some() {
            return Backend::Tunnel(self.ids.id_of(key));
        }
        let secret = key.sibling(format!("{}{KUBECONFIG_SECRET_SUFFIX}", key.name));
        if self.clusters.get(key).is_none() {
            return Backend::Missing(Why::NoKubeconfig(secret));
        }
        match kubeconfig::find(self.secrets.get(&secret), &secret, &key.name) {
            Ok(secret) => Backend::Kubeconfig(secret),
            Err(why) => Backend::Missing(why),
        }
    }

    fn is_connected(&self, id: &str) -> bool {
        self.twins.get(&ObjectKey::cluster(id)).is_some_and(|twin| is_connected(&twin))
    }
}

fn is_connected(twin: &management::Cluster) -> bool {
    let conditions = twin.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == CONNECTED && condition.status == "True")
}

impl ClusterConnections {
    /// Connects to every cluster and keeps the connections until `stop`.
    pub fn new(sources: Sources, stop: CancellationToken) -> Self {
        let inner = Inner { sources, connections: Mutex::default(), listeners: RwLock::default(), stop };
        let all = Self { inner: Arc::new(inner) };
        all.follow_objects();
        tokio::spawn(all.clone().follow_tunnels());
        all
    }

    fn follow_objects(&self) {
        let sources = &self.inner.sources;
        let all = self.clone();
        sources.twins.subscribe(move |change| {
            let Some(key) = all.inner.sources.ids.key_of(&change.key.name) else { return };
            all.refresh(&key);
            // Including a cluster that was only expected to reconnect.
            let was = change.old.is_some_and(|twin| is_connected(twin));
            if was && !change.new.is_some_and(|twin| is_connected(twin)) {
                all.notify(&key, None);
            }
        });
        let all = self.clone();
        sources.secrets.subscribe(move |change| {
            let ObjectKey { namespace, name } = change.key;
            // A new credential requires a new connection, even if the `Connected` condition has not changed.
            if namespace == CREDENTIAL_NAMESPACE
                && let Some(id) = name.strip_prefix(CREDENTIAL_PREFIX)
            {
                all.refresh_id(id);
            } else if let Some(cluster) = name.strip_suffix(KUBECONFIG_SECRET_SUFFIX) {
                all.refresh(&change.key.sibling(cluster));
            }
        });
        let all = self.clone();
        sources.provisioned.subscribe(move |change| {
            let id = |cluster: Option<&Arc<provisioning::Cluster>>| {
                cluster.map(|cluster| cluster.management_id().map(str::to_owned))
            };
            if id(change.old) != id(change.new) {
                all.refresh(change.key);
            }
        });
        let all = self.clone();
        sources.clusters.subscribe(move |change| {
            if change.old.is_some() != change.new.is_some() {
                all.refresh(change.key);
            }
        });
    }

    async fn follow_tunnels(self) {
        let sources = &self.inner.sources;
        let mut tunnels = sources.downstreams.tunnels().changes();
        tokio::select! {
            () = self.inner.stop.cancelled() => return,
            () = sources.synced() => {}
        }
        self.refresh_all();
        loop {
            let changed = tokio::select! {
                () = self.inner.stop.cancelled() => return,
                changed = tunnels.recv() => changed,
            };
            match changed {
                Ok(id) => self.refresh_id(&id),
                Err(RecvError::Lagged(_)) => self.refresh_all(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Refreshes all: the state is unknown at the start, or events were lost.
    fn refresh_all(&self) {
        for cluster in self.inner.sources.clusters.list() {
            let key = ObjectKey::of(cluster.as_ref());
            self.refresh(&key);
            self.notify(&key, None);
        }
    }

    fn refresh_id(&self, id: &str) {
        if let Some(key) = self.inner.sources.ids.key_of(id) {
            self.refresh(&key);
        }
    }

    /// Opens, replaces or closes the connection of a cluster according to its objects and its tunnel.
    fn refresh(&self, key: &ObjectKey) {
        if !self.inner.sources.are_synced() {
            // `follow_tunnels` refreshes all clusters at its start.
            return;
        }
        let mut connections = self.inner.connections.lock();
        let changed = match self.inner.sources.backend(key) {
            Backend::Tunnel(Some(id)) => self.refresh_tunnel(connections.entry(key.clone()), &id),
            Backend::Kubeconfig(secret) => self.refresh_remote(connections.entry(key.clone()), &secret),
            Backend::Tunnel(None) => connections.remove(key).is_some(),
            Backend::Missing(_) => {
                connections.remove(key);
                // Without a connection too: the reason may be another one than before.
                true
            }
        };
        drop(connections);
        if changed {
            self.notify(key, None);
        }
    }

    fn refresh_tunnel(&self, entry: Entry<'_, ObjectKey, Connection>, id: &str) -> bool {
        let connected = self.inner.sources.is_connected(id);
        let downstream = if connected { self.inner.sources.downstreams.get(id).ok() } else { None };
        match (entry, downstream) {
            (Entry::Vacant(_), None) => false,
            (Entry::Occupied(known), downstream) => match (known.get(), downstream) {
                (Connection::Tunnel(known, watched), Some(downstream))
                    if watched.is_alive() && known.is_same(&downstream) =>
                {
                    false
                }
                // Connected, but without a tunnel at the moment; its return is an event.
                (Connection::Tunnel(..), None) if connected => false,
                (_, None) => {
                    known.remove();
                    true
                }
                (_, Some(downstream)) => {
                    let key = known.key().clone();
                    *known.into_mut() = self.tunnel(&key, downstream);
                    true
                }
            },
            (Entry::Vacant(entry), Some(downstream)) => {
                let connection = self.tunnel(entry.key(), downstream);
                entry.insert(connection);
                true
            }
        }
    }

    fn tunnel(&self, key: &ObjectKey, downstream: Downstream) -> Connection {
        let watched = Watched::start(self, key, downstream.client(), &self.inner.stop);
        Connection::Tunnel(Box::new(downstream), watched)
    }

    fn refresh_remote(&self, entry: Entry<'_, ObjectKey, Connection>, secret: &Arc<Secret>) -> bool {
        match entry {
            Entry::Occupied(known) => {
                if matches!(known.get(), Connection::Kubeconfig(remote) if remote.is_of(secret)) {
                    return false;
                }
                let remote = Remote::start(self, known.key(), secret);
                *known.into_mut() = Connection::Kubeconfig(remote);
            }
            Entry::Vacant(entry) => {
                let remote = Remote::start(self, entry.key(), secret);
                entry.insert(Connection::Kubeconfig(remote));
            }
        }
        true
    }

    fn notify(&self, cluster: &ObjectKey, node: Option<&Change<'_, Node>>) {
        let change = ClusterChange { cluster, node };
        self.inner.listeners.read().iter().for_each(|listener| listener(&change));
    }
}

impl ClusterAccess for ClusterConnections {
    fn cluster(&self, key: &ObjectKey) -> Result<ClusterHandle, Disconnected> {
        let sources = &self.inner.sources;
        if !sources.are_synced() {
            return Err(Disconnected { why: Why::Connecting(key.clone()), expected: true });
        }
        let backend = sources.backend(key);
        let connections = self.inner.connections.lock();
        match (backend, connections.get(key)) {
            (Backend::Missing(why), _) => Err(Disconnected::now(why)),
            (Backend::Tunnel(None), _) => Err(Disconnected::now(Why::NoManagementCluster(key.clone()))),
            (Backend::Tunnel(Some(id)), Some(Connection::Tunnel(_, watched))) => {
                // While the condition is True, the tunnel has time to return.
                let expected = sources.is_connected(&id);
                watched.handle().map_err(|why| Disconnected { why, expected })
            }
            (Backend::Tunnel(Some(id)), _) => {
                let expected = sources.is_connected(&id);
                Err(Disconnected { why: Why::NoTunnel { cluster: key.clone(), id }, expected })
            }
            (Backend::Kubeconfig(_), Some(Connection::Kubeconfig(remote))) => remote.handle(),
            (Backend::Kubeconfig(_), _) => {
                Err(Disconnected { why: Why::Connecting(key.clone()), expected: true })
            }
        }
    }

    fn is_being_deleted(&self, cluster: &ObjectKey) -> bool {
        let cluster = self.inner.sources.provisioned.get(cluster);
        cluster.is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_some())
    }

    fn on_change(&self, listener: Listener) {
        self.inner.listeners.write().push(listener);
    }
}
