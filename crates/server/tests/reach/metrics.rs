//! `/metrics` shows what happened, to users with permission.

use drover_testkit::metrics::Scrape;
use futures::{StreamExt as _, TryStreamExt as _};
use http::Request;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use serde_json::{Value, json};

use crate::config_map;
use crate::world::{Dialer, Downstream, World, client, until};

pub(crate) async fn scrape(world: &World) -> Scrape {
    let text = world.admin.request_text(Request::get("/metrics").body(vec![]).unwrap()).await.unwrap();
    Scrape::parse(&text)
}

/// A client with a bearer token.
async fn bearer(world: &World, token: &str) -> Client {
    let text = std::fs::read_to_string(world.manager.data_dir.kubeconfig()).unwrap();
    let mut kubeconfig = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    kubeconfig.auth_infos[0].auth_info =
        Some(kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() });
    client(&serde_json::to_string(&kubeconfig).unwrap()).await
}

async fn status(client: &Client, path: &str) -> (u16, String) {
    let answer = client.send(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    (answer.status().as_u16(), kind.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_require_permission_for_the_path() {
    let world = World::start().await;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "prometheus"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let params = PostParams::default();
    let made = accounts.create_token_request("prometheus", &params, &TokenRequest::default()).await.unwrap();
    let prometheus = bearer(&world, &made.status.unwrap().token.unwrap()).await;
    assert_eq!(status(&prometheus, "/metrics").await.0, 403);
    let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
    let binding = json!({
        "metadata": {"name": "prometheus"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:monitoring"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "prometheus"}],
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    until(async || status(&prometheus, "/metrics").await.0 == 200).await;
    let (_, kind) = status(&prometheus, "/metrics").await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_eq!(status(&prometheus, "/api/v1/secrets").await.0, 403, "no other path is permitted");
    let wrong = bearer(&world, "wrong").await;
    assert_eq!(status(&wrong, "/metrics").await.0, 401);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_objects_and_watches_are_counted_exactly() {
    let world = World::start().await;
    let maps = |client: &Client| -> Api<ConfigMap> { Api::namespaced(client.clone(), "default") };
    let before = scrape(&world).await;
    for number in 0..7 {
        let map = config_map(&format!("outside-{number}"));
        maps(&world.admin).create(&PostParams::default(), &map).await.unwrap();
    }
    for number in 0..3 {
        // As controllers do.
        let map = config_map(&format!("inside-{number}"));
        maps(&world.manager.client).create(&PostParams::default(), &map).await.unwrap();
    }
    maps(&world.admin).create(&PostParams::default(), &config_map("inside-0")).await.unwrap_err();
    maps(&world.admin).get("nothing").await.unwrap_err();
    let unknown = Request::get("/apis/made.up/v7/things/x").body(Body::empty()).unwrap();
    world.admin.send(unknown).await.unwrap();
    let after = scrape(&world).await;
    let grown = |name: &str, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
    let of = [("resource", "configmaps"), ("group", ""), ("version", "v1"), ("scope", "resource")];
    let labelled = |verb, code| [&of[..], &[("verb", verb), ("code", code)]].concat();
    assert_eq!(grown("apiserver_request_total", &labelled("POST", "201")), 10.0);
    assert_eq!(grown("apiserver_request_total", &labelled("POST", "409")), 1.0);
    assert_eq!(grown("apiserver_request_total", &labelled("GET", "404")), 1.0);
    let durations = [&of[..], &[("verb", "POST")]].concat();
    assert_eq!(grown("apiserver_request_duration_seconds_count", &durations), 11.0);
    assert_eq!(grown("apiserver_storage_objects", &[("resource", "configmaps")]), 10.0);
    assert!(grown("apiserver_storage_commit_writes_sum", &[]) >= 10.0);
    assert!(grown("apiserver_storage_revision", &[]) >= 10.0);
    assert!(grown("process_cpu_seconds_total", &[]) >= 0.0);
    for name in ["process_resident_memory_bytes", "process_open_fds", "apiserver_storage_size_bytes"] {
        assert!(after.sum(name, &[]) > 0.0, "{name}");
    }
    let made_up = |sample: &&drover_testkit::metrics::Sample| {
        sample.labels.values().any(|value| value.contains("made.up") || value.contains("things"))
    };
    assert_eq!(after.samples.iter().find(made_up), None, "callers cannot create time series");

    let open = async |count: f64| {
        let labels = [("verb", "WATCH"), ("resource", "configmaps"), ("scope", "namespace")];
        until(async || scrape(&world).await.sum("apiserver_longrunning_requests", &labels) == count).await;
    };
    open(0.0).await;
    let watch = maps(&world.admin).watch(&WatchParams::default(), "0").await.unwrap();
    let mut watch = watch.boxed();
    assert!(matches!(watch.try_next().await.unwrap(), Some(WatchEvent::Added(_))));
    open(1.0).await;
    drop(watch);
    open(0.0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clusters_life_is_visible_in_the_counts_of_clusters_machines_agents_and_tunnels() {
    let world = World::start().await;
    let value = async |name: &str, labels: &[(&str, &str)]| scrape(&world).await.sum(name, labels);
    let is = async |name: &str, labels: &[(&str, &str)], expected: f64| {
        until(async || value(name, labels).await == expected).await;
    };
    is("drover_clusters", &[], 0.0).await;
    let (id, token) = world.make_cluster("counted").await;
    is("drover_clusters", &[("phase", "Provisioning")], 1.0).await;
    let reconciles = value("controller_runtime_reconcile_total", &[("controller", "init")]).await;
    assert!(reconciles > 0.0);
    assert!(value("workqueue_adds_total", &[("name", "init")]).await > 0.0);
    until(async || {
        value("drover_cache_objects", &[("resource", "clusters.provisioning.cattle.io")]).await == 1.0
    })
    .await;

    let downstream = Downstream::start().await;
    let params: Value = downstream.params().await;
    let agent = world.agent(&token, &params, std::sync::Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    is("drover_tunnel_sessions", &[], 1.0).await;
    is("drover_machines", &[], 1.0).await;
    let received = value("drover_tunnel_bytes_total", &[("direction", "received")]).await;
    assert!(received > 0.0 && value("drover_tunnel_bytes_total", &[("direction", "sent")]).await > 0.0);

    let machine = world.make_machine("counted", "worker", &["worker"]).await;
    is("drover_machines", &[], 2.0).await;
    let secrets: Api<Secret> = Api::namespaced(bearer(&world, &machine.bearer).await, "default");
    let plan = drover_provisioning::bootstrap::objects::plan_name("worker");
    let own = WatchParams::default().fields(&format!("metadata.name={plan}"));
    let mut plans = secrets.watch(&own, "0").await.unwrap().boxed();
    assert!(plans.try_next().await.unwrap().is_some());
    is("drover_agents_connected", &[], 1.0).await;
    drop(plans);
    is("drover_agents_connected", &[], 0.0).await;

    agent.abort();
    is("drover_tunnel_sessions", &[], 0.0).await;
    is("drover_tunnel_streams", &[], 0.0).await;
    assert!(value("drover_tunnel_bytes_total", &[("direction", "received")]).await >= received);
    world.stop().await;
}
