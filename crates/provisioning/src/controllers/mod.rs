//! Puts the controllers together: which caches feed which, and the kinds that come at run time.

mod kinds;

use std::sync::Arc;
use std::time::Duration;

use drover_api::rke::v1::RKECluster;
use drover_api::secret_types;
use drover_runtime::cache::Cached;
use drover_runtime::{Cache, Controller, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bootstrap::Bootstraps;
use crate::bootstrap::hook::EtcdHook;
use crate::cluster::controller::Clusters;
use crate::context::{Context, Options};
use crate::controlplane::Planner;
use crate::controlplane::machinedrain::MachineDrain;
use crate::init::Init;
use crate::init::twin::identity;
use crate::init::twin::token::Tokens;
use crate::keys::{annotations, labels};
use crate::machine::custom::{CustomMachines, Requests};
use crate::machine::drivers::{LOCAL_DRIVER, NodeDrivers, local_driver};
use crate::machine::lostnodes::LostNodes;
use crate::machine::missing::{self, MissingNodes};
use crate::machine::nodelookup;
use crate::machine::nodes::Nodes;
use crate::registration::connect::Connect;
use crate::settings::current::{Reports, is_change};
use crate::store::{BY_MANAGEMENT_CLUSTER, BY_MANAGEMENT_ID, Store, Writer};
use kinds::{Kinds, follow_kinds};

/// All providers. CRDs of `drover_api::crds()` must be Established before it is made.
pub struct Provisioning {
    context: Context,
    connect: Connect,
}

impl Provisioning {
    /// Starts the caches; nothing is written yet. Must be called inside a runtime.
    pub fn new(options: Options) -> Self {
        let context = Context::new(options);
        let connect = Connect::new(&context);
        Self { context, connect }
    }

    /// The endpoint that machines register at.
    pub fn connect(&self) -> Connect {
        self.connect.clone()
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Runs every controller until `stop`, then waits for passes under way.
    pub async fn run(self, stop: CancellationToken) {
        let context = self.context;
        tokio::select! {
            () = context.store.synced() => {}
            () = stop.cancelled() => return,
        }
        let tasks = TaskTracker::new();
        let store = context.store.clone();
        let init = Controller::new(Init::new(&context));
        let init_queue = init.queue();
        spawn(&tasks, &stop, feed_init(init, &store));
        spawn(&tasks, &stop, Controller::new(Reports::new(&context)).reconciles(&store.settings));
        let tokens = Controller::new(Tokens::new(&context)).reconciles(&store.tokens);
        spawn(&tasks, &stop, with_settings(tokens, &store, &store.tokens));
        spawn(&tasks, &stop, feed_rke_clusters(Controller::new(Clusters::new(&context)), &store));
        spawn(&tasks, &stop, Bootstraps::controller(&context));
        spawn(&tasks, &stop, EtcdHook::controller(&context));
        spawn(&tasks, &stop, Planner::controller(&context));
        spawn(&tasks, &stop, MachineDrain::controller(&context));
        let requests = Controller::new(Requests::new(&context));
        spawn(
            &tasks,
            &stop,
            requests.watches(&store.secrets, |change| {
                of_type(change.either(), change.key, secret_types::MACHINE_REQUEST)
            }),
        );
        spawn(
            &tasks,
            &stop,
            Controller::new(CustomMachines::new(&context)).reconciles(&store.custom_machines),
        );
        spawn(&tasks, &stop, Controller::new(NodeDrivers::new(&context)).reconciles(&store.drivers));
        let nodes = feed_nodes(Controller::new(Nodes::new(&context)), &context);
        let nodes_queue = nodes.queue();
        spawn(&tasks, &stop, nodes);
        spawn(&tasks, &stop, feed_lost_nodes(Controller::new(LostNodes::new(&context)), &context));
        spawn(&tasks, &stop, feed_missing_nodes(Controller::new(MissingNodes::new(&context)), &store));
        let kinds = Kinds {
            context: context.clone(),
            init_queue,
            nodes_queue,
            tasks: tasks.clone(),
            stop: stop.clone(),
            running: Mutex::default(),
        };
        follow_kinds(Arc::new(kinds), &store);
        tokio::select! {
            () = register_local_driver(&store) => stop.cancelled().await,
            () = stop.cancelled() => {}
        }
        tasks.close();
        tasks.wait().await;
    }
}

/// Between two tries to register the built-in driver.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The driver that needs nothing but this host is always there; whether it is active is a person's choice.
async fn register_local_driver(store: &Store) {
    let writer = Writer::new(store, "nodedriver", "builtin");
    let mut pause = Duration::from_millis(100);
    loop {
        let live = store.drivers.get(&ObjectKey::cluster(LOCAL_DRIVER));
        let active = live.is_none_or(|driver| driver.spec.active);
        let Err(error) = writer.apply(&local_driver(active)).await else { return };
        tracing::error!(error = error.chain(), ?pause, "the built-in driver could not be registered yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn spawn<R: Reconciler>(tasks: &TaskTracker, stop: &CancellationToken, controller: Controller<R>) {
    tasks.spawn(controller.run(stop.clone()));
}

/// Every changed Setting is a reason to look at all objects of `cache` again.
pub(crate) fn with_settings<R: Reconciler, K: Cached>(
    controller: Controller<R>,
    store: &Store,
    cache: &Cache<K>,
) -> Controller<R> {
    let all = cache.clone();
    controller.watches(&store.settings, move |change| {
        let all = if is_change(change) { all.list() } else { vec![] };
        all.iter().map(|object| ObjectKey::of(object.as_ref())).collect::<Vec<_>>()
    })
}

fn of_type(secret: Option<&Arc<Secret>>, key: &ObjectKey, wanted: &str) -> Option<ObjectKey> {
    secret.filter(|secret| secret.type_.as_deref() == Some(wanted)).map(|_| key.clone())
}

/// The object that a label names, in the same namespace.
pub(crate) fn by_label<K: kube::Resource>(object: Option<&Arc<K>>, label: &str) -> Option<ObjectKey> {
    let meta = object?.meta();
    let name = meta.labels.as_ref()?.get(label)?;
    Some(ObjectKey::new(meta.namespace.clone().unwrap_or_default(), name))
}

fn feed_init(controller: Controller<Init>, store: &Store) -> Controller<Init> {
    let (by_twin, by_secret) = (store.clusters.clone(), store.clusters.clone());
    with_settings(controller, store, &store.clusters)
        .reconciles(&store.clusters)
        // A Cluster that ends may leave its management id to another.
        .watches(&store.clusters, {
            let clusters = store.clusters.clone();
            move |change| {
                let ended = change.old.filter(|_| change.new.is_none());
                let ids = ended.map(|cluster| identity::claims(cluster)).unwrap_or_default();
                ids.iter().flat_map(|id| clusters_of_twin(&clusters, id)).collect::<Vec<_>>()
            }
        })
        .reconciles(&store.control_planes)
        .reconciles(&store.capi_clusters)
        .watches(&store.deployments, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
        .watches(&store.sets, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
        .watches(&store.health_checks, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
        .watches(&store.machines, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
        .watches(&store.twins, move |change| clusters_of_twin(&by_twin, &change.key.name))
        .watches(&store.namespaces, {
            let clusters = store.clusters.clone();
            move |change| {
                if change.key.name.starts_with("c-") {
                    clusters_of_twin(&clusters, &change.key.name)
                } else {
                    vec![]
                }
            }
        })
        .watches(&store.secrets, move |change| {
            let name = change.key.name.strip_suffix("-kubeconfig")?;
            let key = change.key.sibling(name);
            by_secret.get(&key).map(|_| key)
        })
}

fn clusters_of_twin(clusters: &Cache<drover_api::provisioning::v1::Cluster>, name: &str) -> Vec<ObjectKey> {
    let found = clusters.by_index(BY_MANAGEMENT_ID, name);
    found.iter().map(|cluster| ObjectKey::of(cluster.as_ref())).collect()
}

fn feed_rke_clusters(controller: Controller<Clusters>, store: &Store) -> Controller<Clusters> {
    controller.reconciles(&store.rke_clusters).watches(&store.capi_clusters, |change| {
        let cluster = change.either()?;
        let infra = cluster.spec.infrastructure_ref.as_ref().filter(|infra| infra.kind == "RKECluster")?;
        Some(change.key.sibling(&infra.name))
    })
}

/// The control planes of a management cluster, by its id.
pub(crate) fn planes_of_twin(
    planes: &Cache<drover_api::rke::v1::RKEControlPlane>,
    management: &str,
) -> Vec<ObjectKey> {
    let found = planes.by_index(BY_MANAGEMENT_CLUSTER, management);
    found.iter().map(|cp| ObjectKey::of(cp.as_ref())).collect()
}

fn machines_of_cluster(
    machines: &Cache<drover_api::capi::v1beta2::Machine>,
    cluster: &ObjectKey,
) -> Vec<ObjectKey> {
    let found = machines.by_label(labels::capi::CLUSTER_NAME, &cluster.namespace, &cluster.name);
    found.iter().map(|machine| ObjectKey::of(machine.as_ref())).collect()
}

/// Finds the Machine with a uid.
const MACHINE_BY_UID: &str = "provisioning/machine-uid";

fn feed_nodes(controller: Controller<Nodes>, context: &Context) -> Controller<Nodes> {
    let store = &context.store;
    let queue = controller.queue();
    store.machines.index(MACHINE_BY_UID, |machine| machine.metadata.uid.iter().cloned().collect());
    let machines = store.machines.clone();
    context.downstream.on_change(Box::new(move |change| {
        // A Node names its Machine by a label; a new connection concerns all of them.
        let uids = change.nodes().filter_map(|node| node.metadata.labels.as_ref()?.get(labels::MACHINE_UID));
        let of_node = uids.flat_map(|uid| machines.by_index(MACHINE_BY_UID, uid));
        of_node.for_each(|machine| queue.add(ObjectKey::of(machine.as_ref())));
        if change.node.is_none() {
            machines_of_cluster(&machines, change.cluster).into_iter().for_each(|key| queue.add(key));
        }
    }));
    controller
        .reconciles(&store.machines)
        .watches(&store.custom_machines, |change| Some(change.key.clone()))
        .watches(&store.secrets, |change| {
            let plan = |secret: &&Arc<Secret>| secret.type_.as_deref() == Some(secret_types::MACHINE_PLAN);
            // Of a plan secret only the pool's labels and taints matter, and not what its agent reports.
            let pool = |secret: Option<&Arc<Secret>>| {
                let notes = secret?.metadata.annotations.clone().unwrap_or_default();
                Some([annotations::LABELS, annotations::TAINTS].map(|key| notes.get(key).cloned()))
            };
            if pool(change.old) == pool(change.new) {
                return None;
            }
            by_label(change.either().filter(plan), labels::MACHINE_NAME)
        })
}

fn feed_lost_nodes(controller: Controller<LostNodes>, context: &Context) -> Controller<LostNodes> {
    let store = &context.store;
    let queue = controller.queue();
    context.downstream.on_change(Box::new(move |change| {
        // A Node that reports is not lost.
        if change.node.is_none_or(|node| node.new.is_some_and(|node| !nodelookup::is_ready(node))) {
            queue.add(change.cluster.clone());
        }
    }));
    controller.watches(&store.machines, |change| {
        let gone = change.new.is_none();
        change.old.filter(|_| gone).map(|machine| change.key.sibling(&machine.spec.cluster_name))
    })
}

fn feed_missing_nodes(controller: Controller<MissingNodes>, store: &Store) -> Controller<MissingNodes> {
    let machines = store.machines.clone();
    controller
        .watches(&store.machines, |change| {
            change.either().filter(|machine| missing::is_custom(machine)).map(|_| change.key.clone())
        })
        .watches(&store.rke_clusters, move |change| {
            // The annotation that says how long a Node may be missing.
            let patience =
                |cluster: Option<&Arc<RKECluster>>| cluster.and_then(|c| missing::patience_of(c).cloned());
            if patience(change.old) == patience(change.new) {
                return vec![];
            }
            machines_of_cluster(&machines, change.key)
        })
}
