//! A management plane and one downstream cluster, each a real API server in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use drover_access_api::{
    ClusterAccess, ClusterChange, ClusterHandle, Disconnected, Listener, ManagementIds, Why,
};
use drover_api::management::v3::Cluster as Twin;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::http::ApiService;
use drover_apiserver::identity::UserInfo;
use drover_provisioning::context::{Options, SystemRandom};
use drover_provisioning::controllers::Provisioning;
use drover_provisioning::controlplane::planner::releases::Releases;
use drover_provisioning::machine::schema::{Drivers, Flag, FlagKind};
use drover_provisioning::registration::connect::Connect;
use drover_provisioning::settings::Settings;
use drover_runtime::fault::{Fault, Faulty, Plan};
use drover_runtime::{Cache, Caches, Clock, Metrics, ObjectKey, in_process_client};
use drover_testkit::objects::Objects;
use drover_testkit::{demo, eventually_within};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) struct World {
    pub(crate) objects: Objects,
    pub(crate) downstream: Client,
    pub(crate) clock: Arc<AheadClock>,
    /// The local driver has learnt another flag.
    pub(crate) upgraded: Arc<AtomicBool>,
    /// Custom machines whose registration was answered: before that, no agent runs.
    pub(crate) answered: Mutex<BTreeSet<String>>,
    management: Embedded,
    _downstream: Embedded,
}

/// The controllers' clock, which a test may put ahead of the real one.
#[derive(Default)]
pub(crate) struct AheadClock {
    seconds: AtomicI64,
}

impl AheadClock {
    pub(crate) fn advance(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for AheadClock {
    fn now(&self) -> Timestamp {
        Timestamp::now() + SignedDuration::from_secs(self.seconds.load(Ordering::SeqCst))
    }
}

/// Waits until `check` holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    eventually_within(demo::PATIENCE, || {
        let holds = check();
        async move { if holds.await { Ok(()) } else { Err(what) } }
    })
    .await;
}

/// The running controllers.
pub(crate) struct Manager {
    pub(crate) connect: Connect,
    stop: CancellationToken,
    tasks: TaskTracker,
    _guard: DropGuard,
}

impl Manager {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn api_server() -> (Embedded, Client) {
    let pki = Pki::in_memory(jiff::Timestamp::now()).unwrap();
    let server = Embedded::start(EmbeddedOptions::in_memory(Arc::new(pki))).await.unwrap();
    let client = in_process_client(server.service(), UserInfo::system_masters("test"));
    (server, client)
}

impl World {
    pub(crate) async fn start() -> Self {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let (management, client) = api_server().await;
        let (downstream_server, downstream) = api_server().await;
        let crds: Api<
            k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        > = Api::all(client.clone());
        for crd in drover_api::crds() {
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        Self {
            answered: Mutex::default(),
            objects: Objects::new(move || client.clone()),
            downstream,
            clock: Arc::default(),
            upgraded: Arc::default(),
            management,
            _downstream: downstream_server,
        }
    }

    /// A client that has nothing but a token.
    pub(crate) fn client_with(&self, token: &str) -> Client {
        let bearer = http::HeaderValue::try_from(format!("Bearer {token}")).unwrap();
        let service = self.management.service();
        let service = tower::ServiceExt::map_request(service, move |mut request: http::Request<Body>| {
            request.headers_mut().insert(http::header::AUTHORIZATION, bearer.clone());
            request
        });
        Client::new(service, "default")
    }

    /// Starts the controllers, whose calls may meet a fault.
    pub(crate) fn manager(&self, plan: Option<Arc<Plan>>) -> Manager {
        let plan = plan.unwrap_or_else(|| Plan::new(Fault::Lost, 0));
        let service = Faulty::new(self.management.service(), plan);
        self.manager_with(in_process_client(service, UserInfo::system_masters("manager")))
    }

    /// The management plane's API itself.
    pub(crate) fn service(&self) -> ApiService {
        self.management.service()
    }

    /// Starts the controllers on a client of the test's own.
    pub(crate) fn manager_with(&self, client: Client) -> Manager {
        self.manager_counted(client, Metrics::default())
    }

    /// The same; what the controllers do is counted.
    pub(crate) fn manager_counted(&self, client: Client, metrics: Metrics) -> Manager {
        let stop = CancellationToken::new();
        let caches = Caches::new(client, stop.clone()).counted(metrics);
        let below = Caches::new(self.downstream.clone(), stop.clone());
        let nodes: Cache<Node> = below.all();
        let tunnel = Arc::new(Tunnel {
            client: self.downstream.clone(),
            nodes,
            twins: caches.all(),
            clusters: caches.all(),
            ids: ManagementIds::new(caches.all()),
        });
        let provisioning = Provisioning::new(Options {
            caches: caches.clone(),
            clock: self.clock.clone(),
            random: Arc::new(SystemRandom),
            settings: Settings {
                server_url: "https://10.0.0.1:8443".into(),
                cacerts: "CA".into(),
                ..Settings::default()
            },
            releases: Releases::builtin(),
            downstream: tunnel.clone(),
            drivers: Arc::new(LocalDriver { upgraded: self.upgraded.clone() }),
            install_script: "#!/bin/sh\necho install\n".into(),
        });
        let connect = provisioning.connect();
        let tasks = TaskTracker::new();
        tasks.spawn(provisioning.run(stop.clone()));
        tasks.spawn(drover_capi::run(caches, tunnel, self.clock.clone(), stop.clone()));
        Manager { connect, tasks, _guard: stop.clone().drop_guard(), stop }
    }
}

struct LocalDriver {
    upgraded: Arc<AtomicBool>,
}

impl Drivers for LocalDriver {
    fn flags(&self, driver: &str) -> Option<Vec<Flag>> {
        let flag = |name: &str| Flag {
            name: name.into(),
            kind: FlagKind::Integer,
            default: "1".into(),
            usage: String::new(),
        };
        let mut flags = vec![flag("local-cpus")];
        flags.extend(self.upgraded.load(Ordering::SeqCst).then(|| flag("local-disks")));
        (driver == "local").then_some(flags)
    }
}

/// The downstream cluster as both crates see it: there once its twin says Connected.
struct Tunnel {
    client: Client,
    nodes: Cache<Node>,
    twins: Cache<drover_api::management::v3::Cluster>,
    clusters: Cache<drover_api::provisioning::v1::Cluster>,
    ids: ManagementIds,
}

impl Tunnel {
    fn connected(&self) -> bool {
        let id = self.ids.id_of(&ObjectKey::new("default", "demo"));
        let twin = id.and_then(|id| self.twins.get(&ObjectKey::cluster(id)));
        let conditions = twin.iter().flat_map(|twin| twin.status.iter().flat_map(|s| &s.conditions));
        conditions.into_iter().any(|c| c.type_ == "Connected" && c.status == "True")
    }
}

impl ClusterAccess for Tunnel {
    fn cluster(&self, key: &ObjectKey) -> Result<ClusterHandle, Disconnected> {
        if !self.connected() {
            return Err(Disconnected::now(Why::NoManagementCluster(key.clone())));
        }
        if !self.nodes.is_synced() {
            return Err(Disconnected::now(Why::ListingNodes(key.clone())));
        }
        Ok(ClusterHandle::new(self.client.clone(), self.nodes.clone()))
    }

    fn is_being_deleted(&self, cluster: &ObjectKey) -> bool {
        let cluster = self.clusters.get(cluster);
        cluster.is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_some())
    }

    fn on_change(&self, listener: Listener) {
        let listener = Arc::new(listener);
        let again = listener.clone();
        let cluster = ObjectKey::new("default", "demo");
        let of_twin = cluster.clone();
        self.nodes.subscribe(move |change| {
            listener(&ClusterChange { cluster: &cluster, node: Some(change) });
        });
        // As in `access`: only a change of the connection is one.
        let connected = |twin: Option<&Arc<Twin>>| {
            let conditions =
                twin.and_then(|twin| twin.status.as_ref()).map(|status| status.conditions.clone());
            conditions.into_iter().flatten().any(|c| c.type_ == "Connected" && c.status == "True")
        };
        self.twins.subscribe(move |change| {
            if connected(change.old) != connected(change.new) {
                again(&ClusterChange { cluster: &of_twin, node: None });
            }
        });
    }
}
