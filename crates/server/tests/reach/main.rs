//! Access to clusters: a whole management plane in this process, with real tunnels and real APIs behind them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod connections;
mod dashboard;
mod isolation;
mod kubeconfig;
mod metrics;
mod provider;
mod registration;
mod security;
mod settings;
mod tunnel;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use world::{Dialer, Downstream, ECHO, Mortal, World, client, text, until};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

async fn namespaces(client: &Client) -> kube::Result<usize> {
    Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await.map(|list| list.items.len())
}

/// Code and message of a rejection.
fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> (u16, String) {
    match answer {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_18_the_authority_is_stored_trimmed_and_has_one_digest_everywhere() {
    let world = World::start().await;
    let fetch = async |path: &str| {
        world.admin.request_text(http::Request::get(path).body(vec![]).unwrap()).await.unwrap()
    };
    let hex =
        |bytes: &str| -> String { Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect() };
    let settings = world.api("management.cattle.io/v3", "Setting", "");
    let patch = Patch::Merge(json!({"value": format!("\n{}\n\n", world.ca.trim())}));
    settings.patch("cacerts", &PatchParams::default(), &patch).await.unwrap();
    let stored = json!(settings.get("cacerts").await.unwrap())["value"].as_str().unwrap().to_owned();
    assert_eq!(stored, world.ca.trim());
    let served: Value = serde_json::from_str(&fetch("/v3/settings/cacerts").await).unwrap();
    assert_eq!(served["value"], stored);
    let digest = hex(&fetch("/cacerts").await);
    assert_eq!(digest, hex(&format!("{stored}\n")));
    // The CA that machines are given.
    let script = fetch("/system-agent-install.sh").await;
    assert!(script.contains(&format!("CATTLE_CA_CHECKSUM=\"{digest}\"")), "{script}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_import_command_reports_that_importing_is_not_supported() {
    let world = World::start().await;
    let request = http::Request::get("/v3/import/some-token.yaml").body(vec![]).unwrap();
    let (code, text) = refusal(world.admin.request_text(request).await);
    assert!(code == 501 && text.contains("Importing clusters is not supported"), "{code} {text}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_26_watches_through_the_proxy_stream_and_end_on_both_sides() {
    let (world, cluster, dialer) = (World::start().await, Downstream::start().await, Dialer::default());
    let (id, token) = world.make_cluster("demo").await;
    let agent = world.agent(&token, &cluster.params().await, Arc::new(dialer.clone())).await.unwrap();
    world.is_connected(&id).await;
    let here: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    let there: Api<ConfigMap> = Api::namespaced(world.proxied(&id).await, "default");
    let added = |event: Option<kube::Result<WatchEvent<ConfigMap>>>| match event {
        Some(Ok(WatchEvent::Added(object))) => object.metadata.name.unwrap(),
        other => panic!("{other:?}"),
    };

    // Events arrive one by one, not when a buffer is full.
    let params = WatchParams::default().disable_bookmarks().fields("metadata.name!=kube-root-ca.crt");
    let mut events = there.watch(&params, "0").await.unwrap().boxed();
    for name in ["one", "two"] {
        here.create(&PostParams::default(), &config_map(name)).await.unwrap();
        assert_eq!(added(events.next().await), name);
    }
    // Objects can also be written.
    there.create(&PostParams::default(), &config_map("three")).await.unwrap();
    assert_eq!(added(events.next().await), "three");

    // When a reader closes the watch, the connection in the cluster is closed.
    let busy = dialer.open();
    drop((events, there));
    until(async || dialer.open() < busy).await;

    // When the cluster's API ends, the watch ends.
    let there: Api<ConfigMap> = Api::namespaced(world.proxied(&id).await, "default");
    let mut events = there.watch(&params, "0").await.unwrap().boxed();
    assert_eq!(added(events.next().await), "one");
    cluster.embedded.shut_down();
    while let Some(event) = events.next().await {
        if event.is_err() {
            break;
        }
    }
    agent.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_26_an_upgraded_connection_carries_bytes_both_ways_and_ends_on_both_sides() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token) = world.make_cluster("demo").await;
    let agent = world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    let bearer = world.kubeconfig("demo", "token").await;
    let request = format!(
        "POST /k8s/clusters/{id}{ECHO}?command=sh HTTP/1.1\r\nHost: drover\r\nAuthorization: Bearer {bearer}\r\n\
         Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
    );
    for end in ["the caller", "the cluster"] {
        let mut stream = world.connection().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        assert!(head.contains("\r\nupgrade: spdy/3.1\r\n"), "{head}");
        // More than any buffer on the way, and every byte is echoed.
        let sent: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
        let (mut read, mut write) = tokio::io::split(stream);
        let copy = sent.clone();
        let writer = tokio::spawn(async move {
            write.write_all(&copy).await.unwrap();
            write
        });
        let mut received = vec![0; sent.len()];
        read.read_exact(&mut received).await.unwrap();
        assert!(received == sent, "bytes were lost or mixed up");
        let mut write = writer.await.unwrap();
        assert_eq!(cluster.upgraded.load(Ordering::SeqCst), 1);
        if end == "the cluster" {
            // It ends after the end of its input.
            write.shutdown().await.unwrap();
            assert_eq!(read.read(&mut [0; 8]).await.unwrap_or(0), 0);
        }
        drop((read, write));
        until(async || cluster.upgraded.load(Ordering::SeqCst) == 0).await;
    }
    agent.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_22_a_kubeconfig_of_one_cluster_reaches_no_other() {
    let world = World::start().await;
    let mut agents = Vec::new();
    let mut clusters = Vec::new();
    for name in ["one", "two"] {
        let cluster = Downstream::start().await;
        let (id, token) = world.make_cluster(name).await;
        let params = cluster.params().await;
        agents.push(world.agent(&token, &params, Arc::new(Dialer::default())).await.unwrap());
        world.is_connected(&id).await;
        clusters.push((id, cluster, world.kubeconfig(name, "value").await));
    }
    let maps = async |kubeconfig: &str, namespace: &str| {
        let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await, namespace);
        api.create(&PostParams::default(), &config_map("made")).await
    };
    for (own, other) in [(0, 1), (1, 0)] {
        let (id, cluster, kubeconfig) = &clusters[own];
        let (other_id, other, _) = &clusters[other];
        maps(kubeconfig, "default").await.unwrap();
        let foreign = kubeconfig.replace(id.as_str(), other_id);
        // A namespace without other requests, because the manager itself also reads from its clusters.
        let (code, text) = refusal(maps(&foreign, "elsewhere").await);
        assert!(code == 403 && text.contains(other_id.as_str()), "{code} {text}");
        let asked =
            |cluster: &Downstream, part: &str| cluster.asked.lock().iter().any(|path| path.contains(part));
        assert!(asked(cluster, "/namespaces/default/configmaps"));
        assert!(!asked(other, "elsewhere") && !asked(cluster, "elsewhere"));
    }
    agents.iter().for_each(tokio::task::JoinHandle::abort);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_27_a_lost_agent_shows_and_requests_say_so() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token) = world.make_cluster("demo").await;
    let proxied = world.proxied(&id).await;
    let (code, text) = refusal(namespaces(&proxied).await);
    assert!(code == 503 && text.contains("has not registered"), "{code} {text}");
    let agent = world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    assert!(namespaces(&proxied).await.unwrap() > 0);

    agent.abort();
    until(async || world.connected(&id).await == ("False".into(), "Disconnected".into())).await;
    let (code, text) = refusal(namespaces(&proxied).await);
    assert!(code == 503 && text.contains("cluster agent disconnected"), "{code} {text}");

    let agent = world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    assert!(namespaces(&proxied).await.unwrap() > 0);
    agent.abort();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_28_dead_clusters_delay_no_other() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let mut agents = Vec::new();
    let mut dead = Vec::new();
    let mortal = Mortal::default();
    for number in 0..20 {
        let (id, token) = world.make_cluster(&format!("dead-{number}")).await;
        agents.push(world.agent(&token, &cluster.params().await, Arc::new(mortal.clone())).await.unwrap());
        dead.push(id);
    }
    for id in &dead {
        world.is_connected(id).await;
    }
    mortal.die();
    // A request waits for one of them, and every probe hangs, while another cluster connects.
    let lost = world.proxied(&dead[0]).await;
    let waiting = tokio::spawn(async move { namespaces(&lost).await });
    let (id, token) = world.make_cluster("demo").await;
    agents.push(world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap());
    world.is_connected(&id).await;
    assert!(namespaces(&world.proxied(&id).await).await.unwrap() > 0);
    for id in &dead {
        until(async || world.connected(id).await.0 != "True").await;
    }
    // The waiting request fails in the end.
    let (code, text) = refusal(waiting.await.unwrap());
    assert!([503, 504].contains(&code), "{code} {text}");
    agents.iter().for_each(tokio::task::JoinHandle::abort);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_check_30_34_the_kubeconfig_works_until_the_cluster_is_deleted() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token) = world.make_cluster("demo").await;
    let params = cluster.params().await;
    let agent = world.agent(&token, &params, Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    let secrets: Api<Secret> = Api::namespaced(world.manager.client.clone(), "default");
    until(async || secrets.get_opt("demo-kubeconfig").await.unwrap().is_some()).await;

    // The kubeconfig has all permissions in its cluster and none in the management plane.
    let kubeconfig = text(&secrets.get("demo-kubeconfig").await.unwrap(), "value");
    let owner = client(&kubeconfig).await;
    let maps: Api<ConfigMap> = Api::namespaced(owner.clone(), "default");
    maps.create(&PostParams::default(), &config_map("made")).await.unwrap();
    let here: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    assert!(here.get_opt("made").await.unwrap().is_some());
    let elsewhere = client(&kubeconfig.replace(&format!("/k8s/clusters/{id}"), "")).await;
    assert_eq!(refusal(namespaces(&elsewhere).await).0, 403);
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(events.next().await.is_some());

    // After the deletion the tunnel and its connections end, no token is valid, and no credential is stored.
    let clusters = world.api("provisioning.cattle.io/v1", "Cluster", "default");
    clusters.delete("demo", &DeleteParams::default()).await.unwrap();
    agent.await.unwrap();
    while let Some(event) = events.next().await {
        if event.is_err() {
            break;
        }
    }
    until(async || clusters.get_opt("demo").await.unwrap().is_none()).await;
    assert_eq!(refusal(namespaces(&owner).await).0, 401);
    assert_eq!(refusal(namespaces(&world.proxied(&id).await).await).0, 404);
    let again = world.open(Some(&token), None, &params, Arc::new(Dialer::default())).await;
    let Err(drover_tunnel::Error::Refused { status, body }) = again else { panic!("a tunnel was accepted") };
    assert_eq!((status, body.as_str()), (400, "cluster not found"));
    let credentials: Api<Secret> = Api::namespaced(world.manager.client.clone(), "cattle-global-data");
    until(async || credentials.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    world.stop().await;
}

/// The management Cluster is then in the workspace, and the Cluster in its namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubeconfig_of_a_cluster_with_a_workspace_annotation_works() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let annotations = json!({"provisioning.cattle.io/fleet-workspace-name": "somewhere-else"});
    let (id, token) = world.make_cluster_with("demo", annotations).await;
    let agent = world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    let twin = world.get("management.cattle.io/v3", "Cluster", "", &id).await.unwrap();
    assert_eq!(twin["spec"]["fleetWorkspaceName"], "somewhere-else");
    let owner = client(&world.kubeconfig("demo", "value").await).await;
    assert!(namespaces(&owner).await.unwrap() > 0);
    // Its Nodes are found as well.
    node_is_found(&world, &cluster, "custom-a").await;
    agent.abort();
    world.stop().await;
}

async fn node_is_found(world: &World, cluster: &Downstream, name: &str) {
    world.make_machine("demo", name, &["worker"]).await;
    let node = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"providerID": format!("test://{name}")},
    }));
    Api::<Node>::all(cluster.client.clone()).create(&PostParams::default(), &node.unwrap()).await.unwrap();
    until(async || {
        let machine = world.get("cluster.x-k8s.io/v1beta2", "Machine", "default", name).await.unwrap();
        machine["status"]["nodeRef"]["name"] == name
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capi_check_27_rotated_credentials_are_taken_up() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    let (id, token) = world.make_cluster("demo").await;
    let first = world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap();
    world.is_connected(&id).await;
    node_is_found(&world, &cluster, "custom-a").await;

    // The service account is recreated with a new token, which the agent registers beside the open tunnel.
    cluster.accounts().delete("cattle", &DeleteParams::default()).await.unwrap();
    cluster.make_account().await;
    let second = world.agent(&token, &cluster.params().await, Arc::new(Dialer::default())).await.unwrap();
    // The old tunnel ends with the connections that use the old token.
    first.abort();
    node_is_found(&world, &cluster, "custom-b").await;
    second.abort();
    world.stop().await;
}
