//! Limits of unauthenticated connections: users and agents are served meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::world::{Dialer, Downstream, World, until};

async fn set(world: &World, name: &str, value: &str) {
    let settings = world.api("management.cattle.io/v3", "Setting", "");
    let object = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "Setting", "metadata": {"name": name}, "value": value,
    });
    settings.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Silent connections from another address of this host.
async fn silent(world: &World, count: usize) -> Vec<TcpStream> {
    let uri: http::Uri = world.manager.url.parse().unwrap();
    let address: SocketAddr = uri.authority().unwrap().as_str().parse().unwrap();
    let mut all = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        all.push(socket.connect(address).await.unwrap());
    }
    all
}

/// How many of them the server has closed.
fn closed(connections: &[TcpStream]) -> usize {
    let ended = |stream: &&TcpStream| !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    connections.iter().filter(ended).count()
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_silent_connections_is_bounded_while_others_list_and_watch() {
    let world = World::start().await;
    // Long timeouts, so that only the limits take effect.
    set(&world, "connection-handshake-timeout", "24h").await;
    set(&world, "connections-per-address", "16").await;
    set(&world, "connections-total", "32").await;
    let maps: Api<ConfigMap> = Api::namespaced(world.admin.clone(), "default");
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();

    let flood = silent(&world, 300).await;
    until(async || closed(&flood) >= 284).await;
    let fresh =
        crate::world::client(&std::fs::read_to_string(world.manager.data_dir.kubeconfig()).unwrap()).await;
    let list: Api<ConfigMap> = Api::namespaced(fresh, "default");
    list.list(&ListParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &config_map("made")).await.unwrap();
    let made = async {
        while let Some(event) = events.try_next().await.unwrap() {
            if matches!(&event, WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("made")) {
                return;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), made).await.unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_and_a_tunnel_outlive_every_connection_deadline() {
    let (world, cluster) = (World::start().await, Downstream::start().await);
    for name in ["connection-handshake-timeout", "connection-header-timeout", "connection-idle-timeout"] {
        set(&world, name, "1s").await;
    }
    let (id, token) = world.make_cluster("demo").await;
    let dialer = Dialer::default();
    let agent = world.agent(&token, &cluster.params().await, Arc::new(dialer)).await.unwrap();
    world.is_connected(&id).await;
    let maps: Api<ConfigMap> = Api::namespaced(world.admin.clone(), "default");
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();

    // An idle connection is closed after its first and after its second request.
    for _ in 0..2 {
        let mut idle = world.connection().await;
        idle.write_all(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        let mut response = Vec::new();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(60), idle.read_to_end(&mut response));
        let _ = ended.await.unwrap();
        assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n") && response.ends_with(b"pong"));
    }
    maps.create(&PostParams::default(), &config_map("made")).await.unwrap();
    let made = async {
        while let Some(event) = events.try_next().await.unwrap() {
            if matches!(&event, WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("made")) {
                return;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), made).await.unwrap();
    assert!(!agent.is_finished(), "the tunnel was cut");
    assert_eq!(world.connected(&id).await.0, "True");
    let there: Api<ConfigMap> = Api::namespaced(world.proxied(&id).await, "default");
    there.list(&ListParams::default()).await.unwrap();
    agent.abort();
    world.stop().await;
}
