//! Watches over HTTP (Checks of `kubernetes-api`).

use bytes::Bytes;
use drover_apiserver::http::ApiBody;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::harness::{DEADLINE, MAPS, Server, map};

struct Lines {
    body: ApiBody,
    buffer: Vec<u8>,
}

impl Lines {
    async fn open(server: &Server, path: &str) -> Self {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let response = server.send(request).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/json");
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|c| *c == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(DEADLINE, self.body.frame()).await.expect("an event");
            self.buffer.extend_from_slice(&frame?.unwrap().into_data().unwrap());
        }
    }

    async fn expect(&mut self, kind: &str, name: &str) -> Value {
        let event = self.next().await.expect("an event");
        assert_eq!(
            (event["type"].as_str(), event["object"]["metadata"]["name"].as_str()),
            (Some(kind), Some(name)),
            "{event}"
        );
        event["object"].clone()
    }
}

#[tokio::test]
async fn events_arrive_in_order_and_the_watch_can_be_resumed() {
    let server = Server::start().await;
    server.post(MAPS, map("old")).await.expect(201);
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=true")).await;
    watch.expect("ADDED", "old").await;
    let created = server.post(MAPS, map("new")).await.expect(201);
    assert_eq!(watch.expect("ADDED", "new").await, created);
    server.merge(&format!("{MAPS}/new"), json!({"data": {"a": "2"}})).await.expect(200);
    let seen = watch.expect("MODIFIED", "new").await;
    server.delete(&format!("{MAPS}/new")).await.expect(200);
    let gone = watch.expect("DELETED", "new").await;
    let number =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(number(&gone) > number(&seen));
    let resumed = format!("{MAPS}?watch=1&resourceVersion={}", number(&created));
    let mut again = Lines::open(&server, &resumed).await;
    again.expect("MODIFIED", "new").await;
    again.expect("DELETED", "new").await;
}

#[tokio::test]
async fn kubernetes_check_5_initial_events_end_with_a_marker() {
    let server = Server::start().await;
    server.post(MAPS, map("x")).await.expect(201);
    let query =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = Lines::open(&server, &format!("{MAPS}?{query}")).await;
    watch.expect("ADDED", "x").await;
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    server.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).await.expect(422);
}

#[tokio::test]
async fn kubernetes_check_6_a_slow_client_misses_nothing() {
    let server = Server::start().await;
    let stored = server.post(MAPS, map("x")).await.expect(201);
    let from = stored["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=true&resourceVersion={from}")).await;
    for n in 0..10_000 {
        server.merge(&format!("{MAPS}/x"), json!({"data": {"a": format!("v{n}")}})).await.expect(200);
    }
    for n in 0..10_000 {
        assert_eq!(watch.expect("MODIFIED", "x").await["data"]["a"], format!("v{n}"));
    }
}

#[tokio::test]
async fn kubernetes_check_7_a_compacted_revision_is_an_error_event() {
    let server = Server::start().await;
    server.post(MAPS, map("x")).await.expect(201);
    server.post(MAPS, map("y")).await.expect(201);
    server.storage.compact(server.storage.index().revision()).await.unwrap();
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=true&resourceVersion=1")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((event["type"].as_str(), event["object"]["code"].as_i64()), (Some("ERROR"), Some(410)));
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(watch.next().await.is_none());
    server.get(&format!("{MAPS}?watch=true&resourceVersion=abc")).await.expect(400);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_normally_at_its_timeout() {
    let server = Server::start().await;
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=true&timeoutSeconds=5")).await;
    let started = tokio::time::Instant::now();
    assert!(watch.next().await.is_none());
    assert_eq!(started.elapsed().as_secs(), 5);
}

#[tokio::test]
async fn kubernetes_check_40_shutdown_ends_watches() {
    let server = Server::start().await;
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=true")).await;
    server.api.shut_down();
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn all_watchers_see_the_same_order() {
    let server = Server::start().await;
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(Lines::open(&server, &format!("{MAPS}?watch=true")).await);
    }
    let writes = (0..50).map(|n| server.post(MAPS, map(&format!("m{n}"))));
    futures::future::join_all(writes).await;
    let mut orders = Vec::new();
    for watch in &mut watches {
        let mut order = Vec::new();
        for _ in 0..50 {
            order.push(watch.next().await.unwrap()["object"]["metadata"]["resourceVersion"].clone());
        }
        orders.push(order);
    }
    assert!(orders.windows(2).all(|pair| pair[0] == pair[1]));
}
