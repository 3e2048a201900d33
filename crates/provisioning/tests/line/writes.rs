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

/// Writes that succeeded, by path.
type Writes = Arc<Mutex<BTreeMap<String, Vec<Method>>>>;

/// A client of the management plane that counts what it writes.
fn counting(world: &World) -> (kube::Client, Writes) {
    let writes = Writes::default();
    let (counted, service) = (writes.clone(), world.service());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (mut service, counted) = (service.clone(), counted.clone());
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let answer = service.call(request).await;
            if method != Method::GET && answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                counted.lock().entry(path).or_default().push(method);
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
        .map(|(path, methods)| (path, methods.iter().filter(|method| **method == Method::PUT).count()))
        .collect();
    // The secret gets its plan; the server keeps the report that it is applied and its probes have passed.
    // The first server is elected before, and says where others join after.
    let mut counts: Vec<usize> = plans.values().copied().collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 2, 4], "{writes:#?}");
}
