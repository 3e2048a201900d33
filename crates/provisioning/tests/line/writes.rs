//! How many writes of plan secrets a cluster's creation costs. Each one wakes the controllers of its cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use drover_apiserver::identity::UserInfo;
use drover_runtime::in_process_client;
use drover_testkit::demo;
use http::Method;
use kube::client::Body;
use parking_lot::Mutex;
use tower::Service;

use crate::players::{Agents, play_with};
use crate::world::World;

/// Writes that succeeded, by path: the method and the field manager, as far as there is one.
type Writes = Arc<Mutex<BTreeMap<String, Vec<(Method, String)>>>>;

/// A client of the management plane that counts what it writes.
fn counting(world: &World) -> (kube::Client, Writes) {
    let writes = Writes::default();
    let (counted, service) = (writes.clone(), world.service());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (mut service, counted) = (service.clone(), counted.clone());
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let query = request.uri().query().unwrap_or_default().to_owned();
            let manager = query.split('&').find_map(|pair| pair.strip_prefix("fieldManager="));
            let manager = manager.unwrap_or_default().replace("%2F", "/");
            let answer = service.call(request).await;
            if method != Method::GET && answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                counted.lock().entry(path).or_default().push((method, manager));
            }
            answer
        }
    });
    (in_process_client(service, UserInfo::system_masters("manager")), writes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_secret_is_written_a_fixed_number_of_times_until_its_machine_is_ready() {
    let world = Arc::new(World::start().await);
    let (client, writes) = counting(&world);
    let _manager = world.manager_with(client);
    let _players = play_with(&world, Agents::StepByStep);
    demo::make(&world.objects).await;
    demo::ready(&world.objects, "provisioned").await;
    let writes = writes.lock().clone();
    let plans: BTreeMap<&String, usize> = writes
        .iter()
        .filter(|(path, _)| path.contains("/secrets/") && path.ends_with("-machine-plan"))
        // How often the bootstrap provider applies a secret that its cache has not seen yet depends on the machine's speed.
        .map(|(path, methods)| (path, methods.iter().filter(|(method, _)| *method == Method::PUT).count()))
        .collect();
    // The secret gets its plan; the server keeps the report that it is applied and its probes have passed.
    // The first server is elected before, and says where others join after.
    let mut counts: Vec<usize> = plans.values().copied().collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 2, 4], "{writes:#?}");
}

/// Writes of the controller of provisioning Clusters: its field managers, and what is written without one.
fn of_init(path: &str, manager: &str) -> bool {
    let own = ["/clusters/demo", "/secrets/demo-kubeconfig", "/configmaps/provisioning-log"];
    let configs = path.contains("/rke-machine-config.cattle.io/");
    manager.starts_with("drover/init/")
        || manager.is_empty()
            && (configs || path.contains("crt-token") || own.iter().any(|own| path.contains(own)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_two_pools_costs_few_writes_of_its_controller() {
    let world = Arc::new(World::start().await);
    let (client, writes) = counting(&world);
    let _manager = world.manager_with(client);
    let _players = play_with(&world, Agents::StepByStep);
    demo::make(&world.objects).await;
    demo::ready(&world.objects, "provisioned").await;
    let writes = writes.lock().clone();
    let mut counts = BTreeMap::<String, usize>::new();
    for (path, list) in &writes {
        for (method, manager) in list.iter().filter(|(_, manager)| of_init(path, manager)) {
            *counts.entry(format!("{method} {path} {manager}")).or_default() += 1;
        }
    }
    // How often it reports depends on how long the machines take.
    let reports = |what: &str| what.contains("/status ") || what.contains("provisioning-log");
    let objects: usize = counts.iter().filter(|(what, _)| !reports(what)).map(|(_, count)| count).sum();
    // Twenty, and what is applied again before the caches show it.
    assert!(objects <= 40, "{objects} writes: {counts:#?}");
}

/// Writes of the provider of machines: infra machines, and the Jobs with what they need.
fn of_machine(path: &str, manager: &str) -> bool {
    let own = ["/localmachines/", "-machine-provision", "-machine-driver-secret", "-machine-state"];
    let jobs = path.ends_with("/namespaces/default/jobs");
    let managers = ["drover/machineprovision/", "drover/machinenodelookup/"];
    let ours = manager.is_empty() || managers.iter().any(|own| manager.starts_with(own));
    ours && (jobs || own.iter().any(|own| path.contains(own)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_costs_few_writes_of_its_provider() {
    let world = Arc::new(World::start().await);
    let (client, writes) = counting(&world);
    let _manager = world.manager_with(client);
    let _players = play_with(&world, Agents::StepByStep);
    demo::make(&world.objects).await;
    demo::ready(&world.objects, "provisioned").await;
    let writes = writes.lock().clone();
    let mut counts = BTreeMap::<String, usize>::new();
    for (path, list) in &writes {
        for (method, manager) in list.iter().filter(|(_, manager)| of_machine(path, manager)) {
            *counts.entry(format!("{method} {path} {manager}")).or_default() += 1;
        }
    }
    // Per machine: the Machine as its owner; finalizer and label; attempt, created, provisioned; addresses and provider id;
    // four support objects and the state secret; a Job; five deletions. A wait that lasts is one write more.
    let sum: usize = counts.values().sum();
    assert!(sum <= 3 * 20, "{sum} writes: {counts:#?}");
    if std::env::var_os("SHOW_COSTS").is_some() {
        eprintln!("{sum} writes: {counts:#?}");
    }
}
