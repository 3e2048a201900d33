//! Puts the controllers together: which caches feed which, and the kinds that come at run time.

use std::collections::HashMap;
use std::sync::Arc;

use drover_api::secret_types;
use drover_runtime::queue::WorkQueue;
use drover_runtime::{Cache, Controller, ObjectKey, Reconciler};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::DynamicObject;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bootstrap::controller::Bootstraps;
use crate::cluster::controller::Clusters;
use crate::context::{Context, Options};
use crate::controlplane::controller::{PlanSecrets, Planner};
use crate::controlplane::machinedrain::MachineDrain;
use crate::init::controller::Init;
use crate::init::token::Tokens;
use crate::init::twin;
use crate::keys::labels;
use crate::machine::custom::{CustomMachines, Requests};
use crate::machine::drivers::{NodeDrivers, local_driver};
use crate::machine::lostnodes::LostNodes;
use crate::machine::nodes::Nodes;
use crate::machine::provision::controller::MachineProvision;
use crate::owner::owner_name;
use crate::registration::connect::Connect;
use crate::store::{Store, Writer, resource};

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
        spawn(&tasks, &stop, Controller::new(Tokens::new(&context)).reconciles(&store.tokens));
        spawn(&tasks, &stop, feed_rke_clusters(Controller::new(Clusters::new(&context)), &store));
        spawn(&tasks, &stop, feed_bootstraps(Controller::new(Bootstraps::new(&context)), &store));
        spawn(&tasks, &stop, feed_planner(Controller::new(Planner::new(&context)), &store));
        let plan_secrets = Controller::new(PlanSecrets::new(&context));
        spawn(
            &tasks,
            &stop,
            plan_secrets.watches(&store.secrets, |change| {
                of_type(change.either(), change.key, secret_types::MACHINE_PLAN)
            }),
        );
        let drains = Controller::new(MachineDrain::new(&context));
        spawn(
            &tasks,
            &stop,
            drains.watches(&store.secrets, |change| {
                of_type(change.either(), change.key, secret_types::MACHINE_PLAN)
            }),
        );
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
        let kinds = Kinds {
            context: context.clone(),
            init_queue,
            nodes_queue,
            tasks: tasks.clone(),
            stop: stop.clone(),
            running: Mutex::default(),
        };
        follow_kinds(Arc::new(kinds), &store);
        // The driver that needs nothing but this host is always there.
        let writer = Writer::new(&store, "nodedriver", "builtin");
        if let Err(error) = writer.apply(&local_driver()).await {
            tracing::error!(error = error.chain(), "the built-in driver could not be registered");
        }
        stop.cancelled().await;
        tasks.close();
        tasks.wait().await;
    }
}

fn spawn<R: Reconciler>(tasks: &TaskTracker, stop: &CancellationToken, controller: Controller<R>) {
    tasks.spawn(controller.run(stop.clone()));
}

fn of_type(secret: Option<&Arc<Secret>>, key: &ObjectKey, wanted: &str) -> Option<ObjectKey> {
    secret.filter(|secret| secret.type_.as_deref() == Some(wanted)).map(|_| key.clone())
}

fn by_label<K: kube::Resource>(object: Option<&Arc<K>>, label: &str) -> Option<ObjectKey> {
    let meta = object?.meta();
    let name = meta.labels.as_ref()?.get(label)?;
    Some(ObjectKey::new(meta.namespace.clone().unwrap_or_default(), name))
}

fn feed_init(controller: Controller<Init>, store: &Store) -> Controller<Init> {
    let (by_twin, by_secret) = (store.clusters.clone(), store.clusters.clone());
    controller
        .reconciles(&store.clusters)
        .reconciles(&store.control_planes)
        .reconciles(&store.capi_clusters)
        .watches(&store.deployments, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
        .watches(&store.sets, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
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
    let all = clusters.list();
    all.iter()
        .filter(|cluster| twin::name_of(cluster) == name)
        .map(|cluster| ObjectKey::of(cluster.as_ref()))
        .collect()
}

fn feed_rke_clusters(controller: Controller<Clusters>, store: &Store) -> Controller<Clusters> {
    controller.reconciles(&store.rke_clusters).watches(&store.capi_clusters, |change| {
        let cluster = change.either()?;
        let infra = cluster.spec.infrastructure_ref.as_ref().filter(|infra| infra.kind == "RKECluster")?;
        Some(change.key.sibling(&infra.name))
    })
}

fn feed_bootstraps(controller: Controller<Bootstraps>, store: &Store) -> Controller<Bootstraps> {
    let (machines, plans) = (store.machines.clone(), store.bootstraps.clone());
    controller
        .reconciles(&store.bootstraps)
        .watches(&store.machines, |change| {
            let config = change.either()?.spec.bootstrap.config_ref.as_ref()?;
            (config.kind == "RKEBootstrap").then(|| change.key.sibling(&config.name))
        })
        .watches(&store.capi_clusters, move |change| {
            let machines =
                machines.by_label(labels::capi::CLUSTER_NAME, &change.key.namespace, &change.key.name);
            machines
                .iter()
                .filter_map(|m| m.spec.bootstrap.config_ref.as_ref())
                .map(|config| change.key.sibling(&config.name))
                .collect::<Vec<_>>()
        })
        .watches(&store.accounts, |change| {
            let account = change.either()?;
            owner_name(&account.metadata, "rke.cattle.io", "RKEBootstrap")
                .map(|name| change.key.sibling(name))
        })
        .watches(&store.secrets, move |change| {
            let secret = change.either()?;
            if let Some(name) = owner_name(&secret.metadata, "rke.cattle.io", "RKEBootstrap") {
                return Some(change.key.sibling(name));
            }
            // The token of a bootstrap account was filled in.
            let account = secret.labels().get(labels::SERVICE_ACCOUNT_NAME)?;
            let bootstrap = change.key.sibling(account.strip_suffix("-machine-bootstrap")?);
            plans.get(&bootstrap).map(|_| bootstrap)
        })
}

fn feed_planner(controller: Controller<Planner>, store: &Store) -> Controller<Planner> {
    let (by_secret, by_twin) = (store.control_planes.clone(), store.control_planes.clone());
    controller
        .reconciles(&store.control_planes)
        .reconciles(&store.capi_clusters)
        .watches(&store.machines, |change| by_label(change.either(), labels::capi::CLUSTER_NAME))
        .watches(&store.twins, move |change| planes_of_twin(&by_twin, &change.key.name))
        .watches(&store.secrets, move |change| {
            let Some(secret) = change.either() else { return vec![] };
            match secret.type_.as_deref() {
                Some(secret_types::MACHINE_PLAN) => {
                    by_label(Some(secret), labels::CLUSTER_NAME).into_iter().collect()
                }
                Some(secret_types::CLUSTER_STATE) => {
                    by_label(Some(secret), labels::capi::CLUSTER_NAME).into_iter().collect()
                }
                // A driver saved a machine's addresses: few enough to ask every control plane beside it.
                Some(secret_types::MACHINE_STATE) => {
                    let planes = by_secret.list();
                    let here =
                        planes.iter().filter(|cp| cp.namespace().as_deref() == Some(&change.key.namespace));
                    here.map(|cp| ObjectKey::of(cp.as_ref())).collect()
                }
                _ if change.key.name.starts_with("crt-token-") => {
                    planes_of_twin(&by_secret, &change.key.namespace)
                }
                _ => vec![],
            }
        })
}

fn planes_of_twin(planes: &Cache<drover_api::rke::v1::RKEControlPlane>, management: &str) -> Vec<ObjectKey> {
    let all = planes.list();
    all.iter()
        .filter(|cp| cp.spec.management_cluster_name == management)
        .map(|cp| ObjectKey::of(cp.as_ref()))
        .collect()
}

fn feed_nodes(controller: Controller<Nodes>, context: &Context) -> Controller<Nodes> {
    let store = &context.store;
    let machines_of = {
        let (planes, machines) = (store.control_planes.clone(), store.machines.clone());
        move |management: &str| -> Vec<ObjectKey> {
            let keys = planes_of_twin(&planes, management);
            let of =
                |key: &ObjectKey| machines.by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name);
            keys.iter().flat_map(of).map(|machine| ObjectKey::of(machine.as_ref())).collect()
        }
    };
    let queue = controller.queue();
    let by_change = machines_of.clone();
    context
        .downstream
        .on_change(Box::new(move |cluster| by_change(cluster).into_iter().for_each(|key| queue.add(key))));
    controller
        .reconciles(&store.machines)
        .watches(&store.twins, move |change| machines_of(&change.key.name))
        .watches(&store.custom_machines, |change| Some(change.key.clone()))
        .watches(&store.secrets, |change| {
            let secret = change.either().filter(|s| s.type_.as_deref() == Some(secret_types::MACHINE_PLAN));
            by_label(secret, labels::MACHINE_NAME)
        })
}

fn feed_lost_nodes(controller: Controller<LostNodes>, context: &Context) -> Controller<LostNodes> {
    let store = &context.store;
    let (queue, planes) = (controller.queue(), store.control_planes.clone());
    context.downstream.on_change(Box::new(move |cluster| {
        planes_of_twin(&planes, cluster).into_iter().for_each(|key| queue.add(key));
    }));
    let by_twin = store.control_planes.clone();
    controller.watches(&store.twins, move |change| planes_of_twin(&by_twin, &change.key.name)).watches(
        &store.machines,
        |change| {
            let gone = change.new.is_none();
            change.old.filter(|_| gone).map(|machine| change.key.sibling(&machine.spec.cluster_name))
        },
    )
}

/// The kinds of machine drivers, which come and go with their CRDs.
struct Kinds {
    context: Context,
    init_queue: WorkQueue<ObjectKey>,
    nodes_queue: WorkQueue<ObjectKey>,
    tasks: TaskTracker,
    stop: CancellationToken,
    running: Mutex<HashMap<String, CancellationToken>>,
}

fn follow_kinds(kinds: Arc<Kinds>, store: &Store) {
    store.crds.subscribe(move |change| {
        let Some(crd) = change.either() else { return };
        if change.new.is_some_and(|crd| is_established(crd)) {
            kinds.start(crd);
        } else if change.new.is_none() {
            kinds.end(crd);
        }
    });
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

impl Kinds {
    fn start(&self, crd: &CustomResourceDefinition) {
        let (group, kind) = (crd.spec.group.as_str(), crd.spec.names.kind.as_str());
        let is_config = group == "rke-machine-config.cattle.io";
        let is_machine = group == "rke-machine.cattle.io" && kind.ends_with("Machine");
        if !is_config && !is_machine {
            return;
        }
        let mut running = self.running.lock();
        if running.contains_key(&crd.name_any()) {
            return;
        }
        let stop = self.stop.child_token();
        running.insert(crd.name_any(), stop.clone());
        drop(running);
        let cache = self.context.store.caches.dynamic(&resource(&format!("{group}/v1"), kind));
        if is_config { self.follow_configs(&cache) } else { self.provision(kind, &cache, stop) }
    }

    fn end(&self, crd: &CustomResourceDefinition) {
        if let Some(stop) = self.running.lock().remove(&crd.name_any()) {
            stop.cancel();
            let api_version = format!("{}/v1", crd.spec.group);
            self.context.store.caches.end_dynamic(&resource(&api_version, &crd.spec.names.kind));
        }
    }

    /// A Config that comes or changes concerns the clusters beside it that name it.
    fn follow_configs(&self, cache: &Cache<DynamicObject>) {
        let (clusters, queue) = (self.context.store.clusters.clone(), self.init_queue.clone());
        cache.subscribe(move |change| {
            for cluster in clusters.list() {
                let pools = cluster.spec.rke_config.iter().flat_map(|config| &config.machine_pools);
                let named =
                    pools.into_iter().any(|p| p.machine_config_ref.name.as_deref() == Some(&change.key.name));
                if named && cluster.namespace().as_deref() == Some(&change.key.namespace) {
                    queue.add(ObjectKey::of(cluster.as_ref()));
                }
            }
        });
    }

    fn provision(&self, kind: &str, cache: &Cache<DynamicObject>, stop: CancellationToken) {
        let store = &self.context.store;
        let wanted = kind.to_owned();
        let for_jobs = wanted.clone();
        let clusters_kind = wanted.clone();
        let machines = store.machines.clone();
        let controller = Controller::new(MachineProvision::new(&self.context, kind, cache))
            .reconciles(cache)
            .watches(&store.machines, move |change| {
                let reference = &change.either()?.spec.infrastructure_ref;
                (reference.kind == wanted).then(|| change.key.sibling(&reference.name))
            })
            .watches(&store.capi_clusters, move |change| {
                let machines =
                    machines.by_label(labels::capi::CLUSTER_NAME, &change.key.namespace, &change.key.name);
                machines
                    .iter()
                    .map(|machine| &machine.spec.infrastructure_ref)
                    .filter(|reference| reference.kind == clusters_kind)
                    .map(|reference| change.key.sibling(&reference.name))
                    .collect::<Vec<_>>()
            })
            .watches(&store.jobs, move |change| {
                let job = change.either()?;
                let is_ours =
                    job.labels().get(labels::INFRA_MACHINE_KIND).is_some_and(|kind| *kind == for_jobs);
                let name = change.key.name.strip_suffix("-machine-provision").map(str::to_owned);
                name.or_else(|| job.labels().get(labels::INFRA_MACHINE_NAME).cloned())
                    .filter(|_| is_ours)
                    .map(|name| change.key.sibling(name))
            });
        // An infra machine that becomes ready is a reason to look for its Node.
        let (nodes, machines) = (self.nodes_queue.clone(), store.machines.clone());
        cache.subscribe(move |change| {
            let Some(object) = change.new else { return };
            if let Some(name) = owner_name(&object.metadata, "cluster.x-k8s.io", "Machine") {
                let key = change.key.sibling(name);
                if machines.get(&key).is_some() {
                    nodes.add(key);
                }
            }
        });
        self.tasks.spawn(controller.run(stop));
    }
}
