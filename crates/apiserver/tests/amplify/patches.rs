//! Patches: small texts that could describe large objects.

use serde_json::{Value, json};

use crate::harness::{FOOS, MAPS, MIB, Server, anything, foo, map};

const PODS: &str = "/api/v1/namespaces/a/pods";
use crate::meter::exclusive;

fn copies(count: usize, field: &str) -> String {
    let operation = |n: usize| json!({"op": "copy", "from": field, "path": format!("{field}/{n}")});
    json!((0..count).map(operation).collect::<Vec<Value>>()).to_string()
}

/// 19 such operations used to take 1.3 GiB, and 22 ended the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_json_patch_stop_at_three_mib() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    server.define(anything(), json!([])).await.expect(201);
    server.post(FOOS, foo("x", &json!({"a": "x".repeat(2_000)}).to_string())).await.expect(201);
    for count in [19, 22, 30] {
        let patch = copies(count, "/spec");
        let sent = patch.len();
        let answer = server.patch(&format!("{FOOS}/x"), "json-patch+json", patch).await;
        assert!(answer.taken.peak < 64 * MIB, "{:?}", answer.taken);
        let status = answer.bounded("copies of a JSON patch", sent, 422);
        let text = status["message"].as_str().unwrap();
        assert!(text.contains("the accumulated size increase of copy is"), "{text}");
        assert!(text.ends_with("exceeding the limit 3145728"), "{text}");
    }
    // A few copies are allowed.
    server.patch(&format!("{FOOS}/x"), "json-patch+json", copies(3, "/spec")).await.expect(200);
}

/// Small maps take a hundred times the size of their text, so 3 MiB of copies could take 300 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_small_maps_are_counted_by_their_memory() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    server.define(anything(), json!([])).await.expect(201);
    let dense = format!("{{\"l\":[{}{{}}]}}", "{\"\":0},".repeat(10_000));
    server.post(FOOS, foo("x", &dense)).await.expect(201);
    let patch: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "/spec/l", "path": format!("/spec/{n}")})).collect();
    let patch = json!(patch).to_string();
    let sent = patch.len();
    let answer = server.patch(&format!("{FOOS}/x"), "json-patch+json", patch).await;
    answer.bounded("copies of small maps", sent, 413);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patched_object_above_the_limit_is_413_for_all_kinds_of_patches() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let long = |letter: &str| letter.repeat(2 * MIB);
    server.post(PODS, pod("p", json!([long("x")]))).await.expect(201);
    let more = json!({"spec": {"containers": [{"name": "c", "image": "i", "args": [long("x")], "command": [long("y")]}]}});
    let path = format!("{PODS}/p");
    for kind in ["merge-patch+json", "strategic-merge-patch+json"] {
        // A merge patch replaces the list of containers, so this adds another field of the same length.
        let change = match kind {
            "merge-patch+json" => json!({"spec": {"schedulerName": long("y")}}),
            _ => json!({"spec": {"containers": [{"name": "c", "command": [long("y")]}]}}),
        };
        let status = server.patch(&path, kind, change.to_string()).await.bounded(kind, 2 * MIB, 413);
        assert_eq!(status["reason"], "RequestEntityTooLarge");
        assert!(status["message"].as_str().unwrap().contains("limit is 3145728"), "{status}");
    }
    let add = json!([{"op": "add", "path": "/spec/containers/0/command", "value": [long("y")]}]).to_string();
    server.patch(&path, "json-patch+json", add).await.bounded("json-patch+json", 2 * MIB, 413);
    let mut applied = more;
    applied["apiVersion"] = "v1".into();
    applied["kind"] = "Pod".into();
    applied["spec"]["containers"][0]["args"] = json!(["x"]);
    applied["spec"]["containers"][0]["name"] = "another".into();
    let path = format!("{path}?fieldManager=m");
    server.patch(&path, "apply-patch+yaml", applied.to_string()).await.bounded("apply", 2 * MIB, 413);
}

fn pod(name: &str, args: Value) -> String {
    let container = json!({"name": "c", "image": "i", "args": args});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}).to_string()
}

/// Merging lists by key or as sets used to be quadratic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_merge_in_time() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    for name in ["p", "q"] {
        server.post(PODS, pod(name, json!([]))).await.expect(201);
    }
    let finalizers: Vec<String> = (0..50_000).map(|n| format!("x.io/{n}")).collect();
    let order = json!({"metadata": {"$setElementOrder/finalizers": finalizers, "finalizers": finalizers}})
        .to_string();
    let sent = order.len();
    for _ in 0..2 {
        let answer = server.patch(&format!("{PODS}/p"), "strategic-merge-patch+json", order.clone()).await;
        answer.bounded("strategic merge of a long set", sent, 200);
    }
    let env: Vec<Value> = (0..20_000).map(|n| json!({"name": format!("n{n}"), "value": "v"})).collect();
    let env = json!({"spec": {"containers": [{"name": "c", "env": env}]}}).to_string();
    for _ in 0..2 {
        let answer = server.patch(&format!("{PODS}/q"), "strategic-merge-patch+json", env.clone()).await;
        answer.bounded("strategic merge by key", env.len(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_of_many_fields_ends_in_time() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let data: serde_json::Map<String, Value> =
        (0..30_000).map(|n| (format!("key-{n}"), json!("v"))).collect();
    for (manager, value) in [("a", "v"), ("b", "v"), ("c", "w")] {
        let mut data = data.clone();
        data.values_mut().for_each(|v| *v = value.into());
        let body = map("x", data.into());
        let sent = body.len();
        let path = format!("{MAPS}/x?fieldManager={manager}&force=true");
        let answer = server.patch(&path, "apply-patch+yaml", body).await;
        let code = answer.code;
        assert!(matches!(code, 200 | 201), "{code}");
        answer.bounded("apply of many fields", sent, code);
    }
}

/// Each manager that applies has an entry in `managedFields`, which the limit of the object bounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_cannot_grow_an_object_without_bound() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let data: serde_json::Map<String, Value> =
        (0..2_000).map(|n| (format!("{}{n}", "k".repeat(200)), json!("v"))).collect();
    let body = map("x", data.into());
    let mut last = 0;
    for n in 0..20 {
        let answer = server
            .patch(&format!("{MAPS}/x?fieldManager=m{n}&force=true"), "apply-patch+yaml", body.clone())
            .await;
        last = answer.code;
        answer.bounded("one more manager", body.len(), last);
        if last == 413 {
            break;
        }
    }
    assert_eq!(last, 413);
    let stored = server.get(&format!("{MAPS}/x"), "application/json").await;
    assert!(stored.bytes.len() <= 3 * MIB, "{}", stored.bytes.len());
    // Above ten, updaters are merged as upstream does, and the object can be made smaller.
    let smaller = json!({"metadata": {"managedFields": [{}]}, "data": null}).to_string();
    server.patch(&format!("{MAPS}/x"), "merge-patch+json", smaller).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_cannot_exceed_the_nesting_limit() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    server.define(anything(), json!([])).await.expect(201);
    server.post(FOOS, foo("x", "{}")).await.expect(201);
    let path = format!("{FOOS}/x");
    let deeper: Vec<Value> = (1..5_000)
        .map(|n| json!({"op": "add", "path": format!("/spec{}", "/a".repeat(n)), "value": {}}))
        .collect();
    let patch = json!(deeper[..500]).to_string();
    server.patch(&path, "json-patch+json", patch).await.expect(422);
    // Merge patches to both ends: each is within the depth limit, their sum is not.
    let nest = |depth: usize| format!("{{\"spec\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth));
    server.patch(&path, "merge-patch+json", nest(90)).await.expect(200);
    server.patch(&path, "merge-patch+json", nest(110)).await.expect(400);
    server.patch(&format!("{path}?fieldManager=m"), "apply-patch+yaml", nest(200)).await.expect(400);
    // What is stored can be read, also in a list.
    server.get(FOOS, "application/json").await.expect(200);
}
