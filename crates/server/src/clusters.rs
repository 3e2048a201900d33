//! Downstream clusters as the controllers see them: a live copy of the Nodes per connected cluster, everything else
//! asked through the tunnel when needed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use drover_access::Downstreams;
use drover_access::downstream::Downstream as Reached;
use drover_access_api::ManagementIds;
use drover_access::registration::{CREDENTIAL_NAMESPACE, CREDENTIAL_PREFIX};
use drover_api::conditions::cattle::CONNECTED;
use drover_api::management::v3 as management;
use drover_api::provisioning::v1 as provisioning;
use drover_capi::workload::{ClientCluster, Disconnected, Workload, WorkloadChange, WorkloadCluster};
use drover_provisioning::downstream::{Downstream, DownstreamError, Removal};
use drover_runtime::{Cache, Caches, ObjectKey};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Before a copy of Nodes that broke is made anew.
const PAUSE: Duration = Duration::from_secs(1);

/// All downstream clusters. Clones share it.
#[derive(Clone)]
pub struct Clusters {
    inner: Arc<Inner>,
}

struct Inner {
    downstreams: Downstreams,
    twins: Cache<management::Cluster>,
    ids: ManagementIds,
    clusters: Cache<provisioning::Cluster>,
    connected: Mutex<HashMap<String, Connection>>,
    listeners: Mutex<Vec<Listener>>,
    stop: CancellationToken,
}

/// Is told the id of a cluster that changed, and the Node if it was one.
type Listener = Box<dyn Fn(&str, Option<&Node>) + Send + Sync>;

/// A connected cluster: the copy of its Nodes lives as long as this.
struct Connection {
    downstream: Reached,
    cluster: Arc<ClientCluster>,
    nodes: Cache<Node>,
    stop: CancellationToken,
}

impl Connection {
    /// A copy that nobody follows any more shows what was.
    fn is_alive(&self) -> bool {
        !self.stop.is_cancelled()
    }
}

impl Clusters {
    /// Follows the `Connected` conditions, the tunnels and the credentials until `stop`.
    pub fn new(
        downstreams: Downstreams,
        twins: Cache<management::Cluster>,
        secrets: &Cache<Secret>,
        ids: ManagementIds,
        clusters: Cache<provisioning::Cluster>,
        stop: CancellationToken,
    ) -> Self {
        let mut tunnels = downstreams.tunnels().changes();
        let inner = Inner {
            downstreams,
            twins: twins.clone(),
            ids,
            clusters,
            connected: Mutex::default(),
            listeners: Mutex::default(),
            stop,
        };
        let all = Self { inner: Arc::new(inner) };
        let follower = all.clone();
        twins.subscribe(move |change| {
            let connected = change.new.is_some_and(|twin| is_connected(twin));
            follower.set_connected(&change.key.name, connected);
            // Also one that was only expected back.
            if !connected && change.old.is_some_and(|twin| is_connected(twin)) {
                follower.notify(&change.key.name, None);
            }
        });
        // A new credential is a new connection, also when the condition never wavered.
        let follower = all.clone();
        secrets.subscribe(move |change| {
            if change.key.namespace == CREDENTIAL_NAMESPACE
                && let Some(id) = change.key.name.strip_prefix(CREDENTIAL_PREFIX)
            {
                follower.look_again(id);
            }
        });
        let follower = all.clone();
        tokio::spawn(async move {
            loop {
                let changed = tokio::select! {
                    () = follower.inner.stop.cancelled() => return,
                    changed = tunnels.recv() => changed,
                };
                match changed {
                    Ok(id) => follower.look_again(&id),
                    Err(RecvError::Lagged(_)) => {
                        follower
                            .inner
                            .twins
                            .list()
                            .iter()
                            .for_each(|twin| follower.look_again(&twin.name_any()));
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        });
        all
    }

    fn look_again(&self, id: &str) {
        let twin = self.inner.twins.get(&ObjectKey::cluster(id));
        self.set_connected(id, twin.is_some_and(|twin| is_connected(&twin)));
    }

    fn set_connected(&self, id: &str, connected: bool) {
        {
            let mut connections = self.inner.connected.lock();
            let downstream = if connected { self.inner.downstreams.get(id).ok() } else { None };
            match (connections.get(id), downstream) {
                (None, None) => return,
                (Some(known), Some(downstream))
                    if known.is_alive() && known.downstream.is_same(&downstream) =>
                {
                    return;
                }
                // Connected, but the tunnel is away for a moment: its return is an event.
                (Some(_), None) if connected => return,
                (_, None) => {
                    if let Some(connection) = connections.remove(id) {
                        connection.stop.cancel();
                    }
                }
                (_, Some(downstream)) => {
                    if let Some(old) = connections.insert(id.to_owned(), self.connect(id, downstream)) {
                        old.stop.cancel();
                    }
                }
            }
        }
        self.notify(id, None);
    }

    fn connect(&self, id: &str, downstream: Reached) -> Connection {
        let client = downstream.client();
        let stop = self.inner.stop.child_token();
        let nodes = Caches::new(client.clone(), stop.clone()).all::<Node>();
        let (clusters, name) = (self.clone(), id.to_owned());
        nodes.subscribe(move |change| clusters.notify(&name, change.either().map(|node| node.as_ref())));
        let (clusters, name, copy, ending) = (self.clone(), id.to_owned(), nodes.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = copy.synced() => clusters.notify(&name, None),
                () = ending.cancelled() => {}
            }
            ending.cancelled().await;
            // By a panic of the copy, unless the cluster or the server went away: then nothing is found to be mended.
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => clusters.look_again(&name),
                () = clusters.inner.stop.cancelled() => {}
            }
        });
        let cluster = Arc::new(ClientCluster::new(client, nodes.clone()));
        Connection { downstream, cluster, nodes, stop }
    }

    fn notify(&self, id: &str, node: Option<&Node>) {
        self.inner.listeners.lock().iter().for_each(|listener| listener(id, node));
    }

    fn listen(&self, listener: Listener) {
        self.inner.listeners.lock().push(listener);
    }

    fn client(&self, id: &str) -> Result<Client, DownstreamError> {
        let downstream = self.inner.downstreams.get(id);
        downstream.map(|d| d.client()).map_err(|_| DownstreamError::Disconnected(id.to_owned()))
    }
}

fn is_connected(twin: &management::Cluster) -> bool {
    let conditions = twin.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == CONNECTED && condition.status == "True")
}

async fn limited<T>(
    cluster: &str,
    operation: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, DownstreamError> {
    let failed = |cause: String| DownstreamError::Failed {
        cluster: cluster.into(),
        operation: operation.into(),
        cause,
    };
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Err(_) => Err(failed(format!("no answer within {} s", CALL_LIMIT.as_secs()))),
        Ok(result) => result.map_err(|error| failed(error.to_string())),
    }
}

impl Downstream for Clusters {
    fn nodes<'a>(
        &'a self,
        cluster: &'a str,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Node>, DownstreamError>> {
        Box::pin(async move {
            let api: Api<Node> = Api::all(self.client(cluster)?);
            let params = ListParams::default().labels(selector);
            Ok(limited(cluster, "list nodes", api.list(&params)).await?.items)
        })
    }

    fn node<'a>(
        &'a self,
        cluster: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Node>, DownstreamError>> {
        Box::pin(async move {
            let api: Api<Node> = Api::all(self.client(cluster)?);
            limited(cluster, "get a node", api.get_opt(name)).await
        })
    }

    fn patch_node<'a>(
        &'a self,
        cluster: &'a str,
        name: &'a str,
        patch: Value,
    ) -> BoxFuture<'a, Result<(), DownstreamError>> {
        Box::pin(async move {
            let api: Api<Node> = Api::all(self.client(cluster)?);
            let params =
                PatchParams { field_manager: Some("drover-provisioning".into()), ..PatchParams::default() };
            limited(cluster, "patch a node", api.patch(name, &params, &Patch::Merge(patch))).await.map(|_| ())
        })
    }

    fn delete_node<'a>(
        &'a self,
        cluster: &'a str,
        name: &'a str,
        uid: &'a str,
    ) -> BoxFuture<'a, Result<(), DownstreamError>> {
        Box::pin(async move {
            let api: Api<Node> = Api::all(self.client(cluster)?);
            let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
            let params = DeleteParams::default().preconditions(only);
            let deleted = async {
                match api.delete(name, &params).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                    other => other.map(|_| ()),
                }
            };
            limited(cluster, "delete a node", deleted).await
        })
    }

    fn pods<'a>(
        &'a self,
        cluster: &'a str,
        node: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Pod>, DownstreamError>> {
        Box::pin(async move {
            let api: Api<Pod> = Api::all(self.client(cluster)?);
            let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
            Ok(limited(cluster, "list pods", api.list(&params)).await?.items)
        })
    }

    fn remove_pod<'a>(
        &'a self,
        cluster: &'a str,
        namespace: &'a str,
        name: &'a str,
        how: Removal,
    ) -> BoxFuture<'a, Result<Option<String>, DownstreamError>> {
        Box::pin(async move {
            let api: Api<Pod> = Api::namespaced(self.client(cluster)?, namespace);
            let options = DeleteParams { grace_period_seconds: how.grace_seconds, ..DeleteParams::default() };
            let removed = async {
                let sent = if how.evict {
                    let params = EvictParams { delete_options: Some(options), ..EvictParams::default() };
                    api.evict(name, &params).await.map(|_| ())
                } else {
                    api.delete(name, &options).await.map(|_| ())
                };
                match sent {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
                    Err(kube::Error::Api(status)) if status.code == 429 => Ok(Some(status.message.clone())),
                    other => other.map(|()| None),
                }
            };
            limited(cluster, "remove a pod", removed).await
        })
    }

    fn on_change(&self, listener: Box<dyn Fn(&str) + Send + Sync>) {
        self.listen(Box::new(move |id, _| listener(id)));
    }
}

impl Workload for Clusters {
    fn cluster(&self, cluster: &ObjectKey) -> Result<Arc<dyn WorkloadCluster>, Disconnected> {
        let id =
            self.inner.ids.id_of(cluster).ok_or_else(|| format!("cluster {cluster} has no management cluster yet"))?;
        // Whoever says so gives it the time that it needs to come back.
        let expected = self.inner.twins.get(&ObjectKey::cluster(&id)).is_some_and(|twin| is_connected(&twin));
        let away = |why| Disconnected { why, expected };
        let connected = self.inner.connected.lock();
        let connection =
            connected.get(&id).ok_or_else(|| away(format!("cluster {cluster} ({id}) is not connected")))?;
        // Before the first list is complete every Node would look deleted.
        if !connection.nodes.is_synced() {
            return Err(away(format!("the Nodes of cluster {cluster} ({id}) are being read")));
        }
        Ok(connection.cluster.clone())
    }

    fn is_leaving(&self, cluster: &ObjectKey) -> bool {
        let cluster = self.inner.clusters.get(cluster);
        cluster.is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_some())
    }

    fn on_change(&self, listener: Box<dyn Fn(&WorkloadChange) + Send + Sync>) {
        let clusters = self.clone();
        self.listen(Box::new(move |id, node| {
            if let Some(cluster) = clusters.inner.ids.key_of(id) {
                let provider_id = node.and_then(|node| node.spec.as_ref()?.provider_id.clone());
                listener(&WorkloadChange { cluster, provider_id });
            }
        }));
    }
}
