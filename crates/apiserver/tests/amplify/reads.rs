//! Lists, tables and selectors: small requests with large responses.

use serde_json::json;

use crate::harness::{MAPS, MIB, Server, map};
use crate::meter::exclusive;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// 30 objects of 1 MiB.
async fn large() -> Server {
    let server = Server::start().await;
    for n in 0..30 {
        server.post(MAPS, map(&format!("m{n}"), json!({"a": "x".repeat(MIB)}))).await.expect(201);
    }
    server
}

/// A list shares the bytes of the store; other formats are built object by object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_lists_are_not_buffered_twice() {
    let _exclusive = exclusive().await;
    let server = large().await;
    let answer = server.get(MAPS, "application/json").await;
    let list = answer.bytes.len();
    assert!(list > 30 * MIB);
    // The test itself buffers the response.
    answer.bounded("a list", 0, 200);
    for (what, path, accept) in [
        ("a table", MAPS.to_owned(), TABLE),
        ("a table with whole objects", format!("{MAPS}?includeObject=Object"), TABLE),
        (
            "a list of metadata",
            MAPS.to_owned(),
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        ),
        ("a pretty-printed list", format!("{MAPS}?pretty=true"), "application/json"),
        ("a list in YAML", MAPS.to_owned(), "application/yaml"),
        ("a page of a list", format!("{MAPS}?limit=9999999"), "application/json"),
    ] {
        let answer = server.get(&path, accept).await;
        answer.bounded(what, 0, 200);
    }
    let answer = server.call("GET", MAPS, &[("accept-encoding", "gzip")], "").await;
    assert!(answer.bytes.len() < 10 * MIB, "{}", answer.bytes.len());
    assert!(answer.taken.peak < 20 * MIB, "{:?}", answer.taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_selectors_are_checked_in_time() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    for n in 0..500 {
        server.post(MAPS, map(&format!("m{n}"), json!({}))).await.expect(201);
    }
    let values: Vec<String> = (0..10_000).map(|n| format!("v{n}")).collect();
    let keys: Vec<String> = (0..6_000).map(|n| format!("!k{n}")).collect();
    for (what, selector) in [
        ("a long set", format!("a+notin+({})", values.join(","))),
        ("many keys", keys.join(",").replace('!', "%21")),
        ("the same key", vec!["%21k"; 9_000].join(",")),
    ] {
        let path = format!("{MAPS}?labelSelector={selector}");
        let sent = path.len();
        let answer = server.get(&path, "application/json").await;
        answer.bounded(what, sent, 200);
    }
}
