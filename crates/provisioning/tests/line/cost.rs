//! What one event costs, with one cluster and among two hundred: passes, calls of the API, and reads of whole caches.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use drover_apiserver::identity::UserInfo;
use drover_runtime::{Metrics, in_process_client};
use drover_testkit::demo;
use drover_testkit::metrics::Scrape;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::Service;

use crate::players::play;
use crate::world::World;

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const MANAGEMENT: &str = "management.cattle.io/v3";
/// How many clusters there are beside the one that is looked at.
const OTHERS: usize = 199;
/// Nothing happens any more when nothing happened for this long.
const QUIET: Duration = Duration::from_millis(400);

/// Numbers by name: `pass <controller>`, `call <method> <path>`, `list <resource>`.
type Counts = BTreeMap<String, u64>;

/// Counts what the controllers do.
struct Counted {
    registry: Registry,
    calls: Arc<Mutex<Counts>>,
}

impl Counted {
    fn read(&self) -> Counts {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let mut counts = self.calls.lock().clone();
        for sample in Scrape::parse(&text).samples {
            let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
            let name = match sample.name.as_str() {
                "controller_runtime_reconcile_total" => format!("pass {}", label("controller")),
                // Settings are read by every pass; their number does not depend on clusters.
                "drover_cache_lists_total" if label("resource") != "settings.management.cattle.io" => {
                    format!("list {}", label("resource"))
                }
                _ => continue,
            };
            *counts.entry(name).or_default() += sample.value as u64;
        }
        counts
    }

    /// Waits until the controllers do nothing, and returns what they have done until then.
    async fn settled(&self) -> Counts {
        let mut last = self.read();
        let mut since = tokio::time::Instant::now();
        while since.elapsed() < QUIET {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = self.read();
            if now != last {
                (last, since) = (now, tokio::time::Instant::now());
            }
        }
        last
    }

    /// What the controllers do because of `event`.
    async fn cost(&self, event: impl Future<Output = ()>) -> Counts {
        let before = self.settled().await;
        event.await;
        let mut cost = self.settled().await;
        for (name, count) in before {
            if let Some(after) = cost.get_mut(&name) {
                *after -= count;
            }
        }
        cost.retain(|_, count| *count > 0);
        cost
    }
}

/// A client of the management plane that counts calls; watches are not calls.
fn counting(world: &World) -> (kube::Client, Arc<Mutex<Counts>>) {
    let calls = Arc::<Mutex<Counts>>::default();
    let (counted, service) = (calls.clone(), world.service());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (mut service, uri) = (service.clone(), request.uri().clone());
        let query = uri.query().unwrap_or_default();
        // Caches watch, and list in pages when a watch has ended. Events are written for people, in the background.
        let of_cache = query.contains("watch=true") || query.contains("limit=");
        if !of_cache && !uri.path().contains("/events") {
            let name = format!("call {} {}", request.method(), uri.path());
            *counted.lock().entry(name).or_default() += 1;
        }
        async move { service.call(request).await }
    });
    (in_process_client(service, UserInfo::system_masters("manager")), calls)
}

/// A cluster that waits for people: its version is not known, its infrastructure is paused.
async fn add_cluster(world: &World, number: usize) {
    let (objects, name) = (&world.objects, format!("other-{number}"));
    let meta = |kind: &str, labels: Value| json!({"namespace": "default", "name": kind, "labels": labels});
    let marks = json!({"cluster.x-k8s.io/cluster-name": name, "rke.cattle.io/cluster-name": name});
    let reference = |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": name, "namespace": "default"});
    let owner = json!([{"apiVersion": CORE, "kind": "Machine", "name": name, "uid": name}]);
    objects
        .create(json!({
            "apiVersion": "provisioning.cattle.io/v1", "kind": "Cluster", "metadata": meta(&name, json!({})),
            "spec": {"kubernetesVersion": "v9.9.9+k3s1", "rkeConfig": {"machinePools": [
                {"name": "w", "quantity": 1, "workerRole": true,
                 "machineConfigRef": {"kind": "LocalConfig", "name": name}},
            ]}},
        }))
        .await;
    objects
        .create(json!({
            "apiVersion": CORE, "kind": "Cluster", "metadata": meta(&name, json!({})), "spec": {"paused": true},
        }))
        .await;
    objects
        .create(json!({
            "apiVersion": CORE, "kind": "Machine", "metadata": meta(&name, marks.clone()),
            "spec": {
                "clusterName": name, "bootstrap": {"configRef": reference("rke.cattle.io", "RKEBootstrap")},
                "infrastructureRef": reference("rke-machine.cattle.io", "LocalMachine"),
            },
        }))
        .await;
    let mut machine = meta(&name, marks.clone());
    machine["ownerReferences"] = owner;
    objects
        .create(json!({
            "apiVersion": "rke-machine.cattle.io/v1", "kind": "LocalMachine", "metadata": machine, "spec": {},
        }))
        .await;
    let mut marks = marks;
    marks["rke.cattle.io/machine-name"] = json!(name);
    objects
        .create(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "rke.cattle.io/machine-plan",
            "metadata": meta(&format!("{name}-machine-plan"), marks), "data": {},
        }))
        .await;
}

/// The plan secret of a worker of the demo cluster.
async fn plan_secret(world: &World) -> String {
    let secrets: Api<Secret> = Api::namespaced(world.objects.client(), "default");
    let params = ListParams::default()
        .fields("type=rke.cattle.io/machine-plan")
        .labels("rke.cattle.io/worker-role=true,rke.cattle.io/cluster-name=demo");
    secrets.list(&params).await.unwrap().items[0].name_any()
}

/// What each event of the demo cluster costs.
async fn costs(world: &World, counted: &Counted, round: &str) -> Vec<(&'static str, Counts)> {
    let objects = &world.objects;
    let note = json!({"metadata": {"annotations": {"example.com/round": round}}});
    let nodes: Api<Node> = Api::all(world.downstream.clone());
    let node = nodes.list(&ListParams::default()).await.unwrap().items[0].name_any();
    let heartbeat = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": round},
    ]}});
    let heartbeat = async {
        nodes.patch_status(&node, &PatchParams::default(), &Patch::Strategic(heartbeat)).await.unwrap();
    };
    let secret = plan_secret(world).await;
    let report = json!({"stringData": {"probe-statuses": format!("{{\"{round}\":{{\"healthy\":true}}}}")}});
    let report = objects.merge("v1", "Secret", "default", &secret, report);
    let machine = demo::machines(objects).await;
    let machine = machine.iter().find(|machine| machine["spec"]["clusterName"] == "demo").unwrap();
    let machine = machine["metadata"]["name"].as_str().unwrap();
    let machine = objects.merge(CORE, "Machine", "default", machine, note.clone());
    let cluster = demo::cluster(objects).await;
    let twin = cluster["status"]["clusterName"].as_str().unwrap();
    let twin = objects.merge(MANAGEMENT, "Cluster", "", twin, note.clone());
    let config =
        objects.merge("rke-machine-config.cattle.io/v1", "LocalConfig", "default", "w", note.clone());
    vec![
        ("a Node's heartbeat", counted.cost(heartbeat).await),
        ("an agent's report", counted.cost(report).await),
        ("a change of a Machine", counted.cost(machine).await),
        ("a change of a management Cluster", counted.cost(twin).await),
        ("a change of a Config", counted.cost(config).await),
    ]
}

/// What is wrong with the cost of an event, if anything. `limits` are passes by controller; the API is not read, no cache
/// is read whole, and what is written are the objects of this cluster.
fn excess(cost: &Counts, limits: &[(&str, u64)], writes: u64) -> Option<String> {
    let mut wrong = String::new();
    let mut written = 0;
    for (name, count) in cost {
        let (what, which) = name.split_once(' ').unwrap();
        let allowed = match what {
            "pass" => limits.iter().find(|(limited, _)| *limited == which).map_or(0, |(_, limit)| *limit),
            "call" if !which.starts_with("GET ") => {
                written += count;
                u64::MAX
            }
            _ => 0,
        };
        if *count > allowed {
            writeln!(wrong, "{name}: {count} instead of at most {allowed}").unwrap();
        }
    }
    if written > writes {
        writeln!(wrong, "{written} writes instead of at most {writes}").unwrap();
    }
    (!wrong.is_empty()).then(|| format!("{wrong}{cost:#?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_costs_only_its_own_objects_however_many_clusters_there_are() {
    let world = Arc::new(World::start().await);
    let (client, calls) = counting(&world);
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    let _manager = world.manager_counted(client, metrics);
    let players = play(&world);
    demo::make(&world.objects).await;
    demo::ready(&world.objects, "provisioned").await;
    drop(players);
    let counted = Counted { registry, calls };
    let alone = costs(&world, &counted, "alone").await;
    futures::stream::iter(0..OTHERS).for_each_concurrent(16, |number| add_cluster(&world, number)).await;
    let among = costs(&world, &counted, "among").await;
    if std::env::var_os("SHOW_COSTS").is_some() {
        eprintln!("{alone:#?}\n{among:#?}");
    }
    let of_machine = [
        ("machine", 2),
        ("machineset", 2),
        ("machinedeployment", 2),
        ("cluster", 2),
        ("init", 2),
        ("planner", 2),
        ("etcdhook", 1),
        ("machinenodelookup", 1),
    ];
    let wrong: String = alone
        .iter()
        .chain(&among)
        .filter_map(|(event, cost)| {
            let wrong = match *event {
                "a Node's heartbeat" => excess(cost, &[("machine", 1), ("machinenodelookup", 1)], 1),
                "an agent's report" => excess(cost, &[("planner", 2)], 1),
                // The management Cluster is applied in every pass of its Cluster.
                "a change of a Machine" => excess(cost, &of_machine, 2),
                _ => excess(cost, &[("init", 2)], 2),
            };
            wrong.map(|wrong| format!("{event}: {wrong}\n"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong}");
}
