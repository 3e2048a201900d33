//! Status codes, headers and formats (Checks of `kubernetes-api`).

use futures::FutureExt;
use serde_json::{Value, json};

use crate::harness::{Answer, FOOS, MAPS, Server, foo, map};

#[tokio::test]
async fn kubernetes_check_3_media_types() {
    let server = Server::start().await;
    server.post(MAPS, map("x")).await.expect(201);
    for path in [MAPS, &format!("{MAPS}/x"), "/api", "/version"] {
        let status = server.call("GET", path, &[("accept", "application/vnd.foo")], "").await;
        assert_eq!(status.headers["content-type"], "application/json");
        assert_eq!(status.expect(406)["reason"], "NotAcceptable", "{path}");
    }
    let text = server.call("POST", MAPS, &[("content-type", "text/plain")], map("y").to_string()).await;
    assert_eq!(text.expect(415)["reason"], "UnsupportedMediaType");
    let yaml = "metadata:\n  name: y\ndata:\n  k: v\n";
    server.call("POST", MAPS, &[("content-type", "application/yaml")], yaml).await.expect(201);
    let out = server.call("GET", &format!("{MAPS}/y"), &[("accept", "application/yaml")], "").await;
    assert_eq!(out.headers["content-type"], "application/yaml");
    assert!(String::from_utf8_lossy(&out.bytes).contains("k: v"));
}

#[tokio::test]
async fn kubernetes_check_4_discovery_has_an_etag_and_follows_definitions_at_once() {
    let server = Server::start().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let ask = async |path: &str, tag: Option<&str>| -> Answer {
        let mut headers = vec![("accept", accept)];
        headers.extend(tag.map(|tag| ("if-none-match", tag)));
        server.call("GET", path, &headers, "").await
    };
    let first = ask("/apis", None).await;
    assert!(first.headers["content-type"].to_str().unwrap().contains("as=APIGroupDiscoveryList"));
    let tag = first.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(ask("/apis", Some(&tag)).await.code, 304);
    assert_eq!(ask("/api", None).await.expect(200)["kind"], "APIGroupDiscoveryList");
    server.install_foos().await;
    let second = ask("/apis", Some(&tag)).await;
    assert_ne!(second.headers["etag"].to_str().unwrap(), tag);
    let second = second.expect(200);
    let group = second["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "x.io").unwrap();
    let resource = &group["versions"][0]["resources"][0];
    assert_eq!(
        (resource["resource"].as_str(), resource["scope"].as_str()),
        (Some("foos"), Some("Namespaced"))
    );
    let legacy = server.get("/apis/x.io/v1").await.expect(200);
    let names: Vec<_> = legacy["resources"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["foos", "foos/status", "foos/scale"]);
    assert_eq!(server.get("/apis/x.io").await.expect(200)["preferredVersion"]["version"], "v1");
}

#[tokio::test]
async fn kubernetes_check_10_and_lists() {
    let server = Server::start().await;
    for n in 0..5 {
        let mut object = map(&format!("m{n}"));
        object["metadata"]["labels"] = json!({"odd": (n % 2 == 1).to_string()});
        server.post(MAPS, object).await.expect(201);
    }
    let empty = server.get("/api/v1/namespaces/b/configmaps").await.expect(200);
    assert_eq!(empty["items"], json!([]));
    assert_eq!(empty["kind"], "ConfigMapList");
    assert!(empty["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    let odd = server.get(&format!("{MAPS}?labelSelector=odd%3Dtrue")).await.expect(200);
    assert_eq!(odd["items"].as_array().unwrap().len(), 2);
    let one = server.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dm3")).await.expect(200);
    assert_eq!(one["items"][0]["metadata"]["name"], "m3");
    let page = server.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(page["metadata"]["remainingItemCount"], 3);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let next = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(next["items"][0]["metadata"]["name"], "m2");
    for (query, code) in [
        ("continue=xyz", 400),
        ("fieldSelector=spec.nope%3D1", 400),
        ("labelSelector=%3D%3D", 400),
        ("resourceVersion=abc", 400),
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422),
        ("resourceVersionMatch=Sometimes&resourceVersion=1", 422),
        ("sendInitialEvents=true", 422),
    ] {
        assert_eq!(server.get(&format!("{MAPS}?{query}")).await.code, code, "{query}");
    }
    let with_version = format!("{MAPS}?limit=2&continue={token}&resourceVersion=5");
    server.get(&with_version).await.expect(400);
    let all = server.get("/api/v1/configmaps").await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn cluster_scoped_objects_and_all_namespaces_are_listed_in_pages() {
    let server = Server::start().await;
    for n in 0..5 {
        let name = format!("n{n}");
        server.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await.expect(201);
        server.post(&format!("/api/v1/namespaces/{name}/configmaps"), map("m")).await.expect(201);
    }
    for list in ["/api/v1/namespaces", "/api/v1/configmaps"] {
        let text = |value: &Value, key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
        let name = |item: &Value| format!("{}/{}", text(item, "namespace"), text(item, "name"));
        let names = |list: &Value| list["items"].as_array().unwrap().iter().map(name).collect::<Vec<_>>();
        let all = names(&server.get(list).await.expect(200));
        let (mut paged, mut token) = (vec![], String::new());
        loop {
            let page = server.get(&format!("{list}?limit=2&continue={token}")).await.expect(200);
            paged.extend(names(&page));
            token = text(&page, "continue");
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(paged, all, "{list}");
    }
}

#[tokio::test]
async fn kubernetes_check_7_a_compacted_page_can_be_resumed_inconsistently() {
    let server = Server::start().await;
    for n in 0..4 {
        server.post(MAPS, map(&format!("m{n}"))).await.expect(201);
    }
    let page = server.get(&format!("{MAPS}?limit=2")).await.expect(200);
    let old = page["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    server.post(MAPS, map("m9")).await.expect(201);
    server.storage.compact(server.storage.index().revision()).await.unwrap();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let gone = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(410);
    assert_eq!(gone["reason"], "Expired");
    let token = gone["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{MAPS}?limit=9&continue={token}")).await.expect(200);
    let names: Vec<_> =
        rest["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["m2", "m3", "m9"]);
    let exact = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    assert_eq!(server.get(&exact).await.expect(410)["reason"], "Expired");
}

#[tokio::test]
async fn kubernetes_checks_11_to_14_updates() {
    let server = Server::start().await;
    server.install_foos().await;
    let stored = server.post(FOOS, foo("x")).await.expect(201);
    let path = format!("{FOOS}/x");
    let mut changed = stored.clone();
    changed["spec"]["x"] = 2.into();
    let results = futures::future::join_all([
        server.put(&path, changed.clone()),
        server.put(&path, {
            changed["spec"]["x"] = 3.into();
            changed.clone()
        }),
    ])
    .await;
    let mut codes: Vec<u16> = results.iter().map(|answer| answer.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [200, 409]);
    let races = (0..50).map(|n| server.merge(&path, json!({"spec": {"x": n}})).boxed_local());
    for answer in futures::future::join_all(races).await {
        answer.expect(200);
    }
    let current = server.get(&path).await.expect(200);
    assert_eq!(server.put(&path, current.clone()).await.expect(200), current);
    let status = server.put(&path, foo("x")).await.expect(422);
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.resourceVersion");
    server.merge(&path, json!({"metadata": {"resourceVersion": "1"}})).await.expect(409);
    let all = json!({"status": {"ok": 1}, "spec": {"x": 77}, "metadata": {"labels": {"a": "b"}}});
    let patched = server.merge(&format!("{path}/status"), all).await.expect(200);
    assert_eq!(patched["status"]["ok"], 1);
    assert_eq!(patched["spec"], current["spec"]);
    assert_eq!(patched["metadata"].get("labels"), None);
    assert_eq!(patched["metadata"]["generation"], current["metadata"]["generation"]);
}

#[tokio::test]
async fn patches() {
    let server = Server::start().await;
    server.install_foos().await;
    server.post(FOOS, foo("x")).await.expect(201);
    let path = format!("{FOOS}/x");
    let kind = "json-patch+json";
    let good = json!([{"op": "test", "path": "/spec/x", "value": 1}, {"op": "replace", "path": "/spec/x", "value": 5}]);
    assert_eq!(server.patch(&path, kind, good.clone()).await.expect(200)["spec"]["x"], 5);
    assert_eq!(server.patch(&path, kind, good).await.expect(422)["reason"], "Invalid");
    server.patch(&path, kind, json!({"not": "a list"})).await.expect(400);
    server.patch(&format!("{FOOS}/nope"), kind, json!([])).await.expect(404);
    let strategic = server.patch(&path, "strategic-merge-patch+json", json!({})).await.expect(415);
    assert!(strategic["message"].as_str().unwrap().contains("application/apply-patch+yaml"));
    server.merge(&path, json!({"metadata": {"name": "other"}})).await.expect(400);
    server.call("PATCH", &path, &[("content-type", "application/merge-patch+json")], "[1]").await.expect(400);
    let forced = format!("{path}?force=true");
    server.merge(&forced, json!({})).await.expect(422);
}

#[tokio::test]
async fn kubernetes_check_23_apply_creates_and_reports_conflicts() {
    let server = Server::start().await;
    let path = format!("{MAPS}/x");
    let apply = async |manager: &str, value: &str, extra: &str| {
        let mut object = map("x");
        object["data"]["a"] = value.into();
        server.patch(&format!("{path}?fieldManager={manager}{extra}"), "apply-patch+yaml", object).await
    };
    apply("one", "1", "").await.expect(201);
    let conflict = apply("two", "2", "").await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert_eq!(apply("two", "2", "&force=true").await.expect(200)["data"]["a"], "2");
    server.patch(&path, "apply-patch+yaml", map("x")).await.expect(422);
}

#[tokio::test]
async fn kubernetes_check_26_strict_fields() {
    let server = Server::start().await;
    server.install_foos().await;
    let body =
        r#"{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"x"},"spec":{"x":1,"x":2,"nope":3}}"#;
    let json = [("content-type", "application/json")];
    let strict =
        server.call("POST", &format!("{FOOS}?fieldValidation=Strict"), &json, body).await.expect(400);
    let message = strict["message"].as_str().unwrap();
    assert!(
        message.contains(r#"unknown field "spec.nope""#) && message.contains(r#"duplicate field "spec.x""#),
        "{message}"
    );
    let warned = server.call("POST", FOOS, &json, body).await;
    assert_eq!(warned.headers.get_all("warning").iter().count(), 2);
    assert_eq!(warned.expect(201)["spec"], json!({"x": 2}));
    let silent = server
        .call(
            "POST",
            &format!("{FOOS}?fieldValidation=Ignore&dryRun=All"),
            &json,
            body.replace("\"x\"}", "\"y\"}"),
        )
        .await;
    assert!(silent.headers.get("warning").is_none());
    silent.expect(201);
    let built_in = r#"{"metadata":{"name":"x","nope":1},"data":{"a":"1","a":"2"},"spec":{}}"#;
    let strict =
        server.call("POST", &format!("{MAPS}?fieldValidation=Strict"), &json, built_in).await.expect(400);
    let message = strict["message"].as_str().unwrap();
    assert!(["metadata.nope", "data.a", "spec"].iter().all(|path| message.contains(path)), "{message}");
    server.call("POST", MAPS, &json, r#"{"metadata":{"name":"x"},"data":{"a":1}}"#).await.expect(400);
    server.call("POST", &format!("{FOOS}?fieldValidation=Maybe"), &json, body).await.expect(422);
}

#[tokio::test]
async fn kubernetes_check_27_dry_run() {
    let server = Server::start().await;
    let dry = server.post(&format!("{MAPS}?dryRun=All"), map("x")).await.expect(201);
    assert_eq!(dry["metadata"]["uid"].as_str().unwrap().len(), 36);
    server.get(&format!("{MAPS}/x")).await.expect(404);
    server.post(&format!("{MAPS}?dryRun=Some"), map("x")).await.expect(422);
    let stored = server.post(MAPS, map("x")).await.expect(201);
    let path = format!("{MAPS}/x");
    let dry = server.merge(&format!("{path}?dryRun=All"), json!({"data": {"a": "2"}})).await.expect(200);
    assert_eq!(dry["data"]["a"], "2");
    server.call("DELETE", &format!("{path}?dryRun=All"), &[], "").await.expect(200);
    assert_eq!(server.get(&path).await.expect(200), stored);
    server.post(&format!("{MAPS}?dryRun=All"), map("x")).await.expect(409);
}

#[tokio::test]
async fn kubernetes_check_39_limits() {
    let server = Server::start().await;
    let mut big = map("x");
    big["data"]["a"] = "x".repeat(4 << 20).into();
    let status = server.post(MAPS, big).await.expect(413);
    assert!(status["message"].as_str().unwrap().contains("limit is 3145728"));
    assert_eq!(status["reason"], "RequestEntityTooLarge");
    server.post(MAPS, map("x")).await.expect(201);
    let many = vec![json!({"op": "test", "path": "/data/a", "value": "1"}); 10_001];
    server.patch(&format!("{MAPS}/x"), "json-patch+json", Value::Array(many)).await.expect(413);
    server.get(&format!("{MAPS}?timeout=abc")).await.expect(400);
    server.get(&format!("{MAPS}?timeout=0s")).await.expect(200);
}

#[tokio::test]
async fn scopes_paths_and_methods() {
    let server = Server::start().await;
    for (method, path, code) in [
        ("GET", "/apis/nope.io/v1/foos", 404),
        ("GET", "/api/v1/nopes", 404),
        ("GET", "/nope", 404),
        ("POST", "/api/v1/configmaps", 404),
        ("GET", "/api/v1/configmaps/x", 404),
        ("GET", "/api/v1/namespaces/a/nodes", 404),
        ("PUT", MAPS, 405),
        ("POST", "/version", 405),
        ("GET", "/api/v1/namespaces/a/configmaps/x/status", 404),
        ("POST", "/apis/apiregistration.k8s.io/v1/apiservices", 405),
    ] {
        let answer = server.call(method, path, &[("content-type", "application/json")], "{}").await;
        assert_eq!(answer.expect(code)["kind"], "Status", "{method} {path}");
    }
    let version = server.get("/version").await.expect(200);
    assert_eq!((version["major"].as_str(), version["minor"].as_str()), (Some("1"), Some("36")));
    assert_eq!(server.get("/readyz").await.expect(200), "ok");
    let verbose = server.get("/livez?verbose").await.expect(200);
    assert!(verbose.as_str().unwrap().ends_with("[+]storage ok\nlivez check passed\n"), "{verbose}");
    server.get("/readyz/nope").await.expect(404);
    server.api.shut_down();
    server.get("/readyz").await.expect(500);
    server.get("/livez").await.expect(200);
}

#[tokio::test]
async fn deletes() {
    let server = Server::start().await;
    for name in ["x", "y", "z"] {
        server.post(MAPS, map(name)).await.expect(201);
    }
    let status = server.delete(&format!("{MAPS}/x")).await.expect(200);
    assert_eq!(
        (status["status"].as_str(), status["details"]["kind"].as_str()),
        (Some("Success"), Some("configmaps"))
    );
    let missing = server.delete(&format!("{MAPS}/x")).await.expect(404);
    assert_eq!(missing["message"], "configmaps \"x\" not found");
    let body = |body: Value| body.to_string();
    let json = [("content-type", "application/json")];
    for (options, code) in [
        (json!({"preconditions": {"uid": "other"}}), 409),
        (json!({"propagationPolicy": "Sideways"}), 422),
        (json!({"propagationPolicy": "Orphan", "orphanDependents": true}), 422),
        (json!({"dryRun": ["Some"]}), 422),
        (json!({"kind": "ConfigMap"}), 400),
    ] {
        let answer = server.call("DELETE", &format!("{MAPS}/y"), &json, body(options.clone())).await;
        assert_eq!(answer.code, code, "{options}");
    }
    let deleted = server.delete(MAPS).await.expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    assert_eq!(server.get(MAPS).await.expect(200)["items"], json!([]));
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    server.post("/apis/batch/v1/namespaces/a/jobs", job).await.expect(201);
    let answer = server.delete("/apis/batch/v1/namespaces/a/jobs/j").await;
    assert!(answer.headers["warning"].to_str().unwrap().contains("child pods are preserved by default"));
    assert_eq!(answer.expect(200)["metadata"]["finalizers"], json!(["orphan"]));
}

#[tokio::test]
async fn scale() {
    let server = Server::start().await;
    server.install_foos().await;
    let mut object = foo("x");
    object["spec"]["replicas"] = 3.into();
    server.post(FOOS, object).await.expect(201);
    let path = format!("{FOOS}/x/scale");
    let scale = server.get(&path).await.expect(200);
    assert_eq!((scale["kind"].as_str(), scale["spec"]["replicas"].as_i64()), (Some("Scale"), Some(3)));
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = 5.into();
    assert_eq!(server.put(&path, wanted.clone()).await.expect(200)["spec"]["replicas"], 5);
    server.put(&path, wanted).await.expect(409);
    server.merge(&path, json!({"spec": {"replicas": 0}})).await.expect(200);
    let object = server.get(&format!("{FOOS}/x")).await.expect(200);
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(0), &json!(3)));
    server.merge(&path, json!({"spec": {"replicas": -1}})).await.expect(422);
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    server.post("/apis/apps/v1/namespaces/a/deployments", deployment).await.expect(201);
    let scale = server.get("/apis/apps/v1/namespaces/a/deployments/d/scale").await.expect(200);
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(1), &json!("a=b")));
}

#[tokio::test]
async fn put_creates_only_where_upstream_allows_it() {
    let server = Server::start().await;
    let lease = json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 15}});
    server.put("/apis/coordination.k8s.io/v1/namespaces/a/leases/l", lease.clone()).await.expect(201);
    server.put("/apis/coordination.k8s.io/v1/namespaces/a/leases/l", lease).await.expect(422);
    server.put(&format!("{MAPS}/x"), map("x")).await.expect(404);
}

#[tokio::test]
async fn services_get_an_address_and_keep_it() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/a/services";
    let mut seen = std::collections::HashSet::new();
    for n in 0..20 {
        let service = json!({"metadata": {"name": format!("s{n}")}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        let stored = server.post(path, service.clone()).await.expect(201);
        assert!(seen.insert(stored["spec"]["clusterIP"].as_str().unwrap().to_owned()));
        assert!(seen.insert(stored["spec"]["ports"][0]["nodePort"].to_string()));
        assert_eq!(stored["spec"]["clusterIPs"][0], stored["spec"]["clusterIP"]);
        let after = server.put(&format!("{path}/s{n}"), service).await.expect(200);
        assert_eq!(after["spec"], stored["spec"]);
    }
    let headless = json!({"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    assert_eq!(server.post(path, headless).await.expect(201)["spec"]["clusterIP"], "None");
}

#[tokio::test]
async fn other_formats() {
    let server = Server::start().await;
    server.post(MAPS, map("x")).await.expect(201);
    let one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let partial = server.call("GET", &format!("{MAPS}/x"), &[("accept", one)], "").await.expect(200);
    assert_eq!((partial["kind"].as_str(), partial.get("data")), (Some("PartialObjectMetadata"), None));
    let many = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    let list = server.call("GET", MAPS, &[("accept", many)], "").await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"]["name"], "x");
    server.call("GET", MAPS, &[("accept", one)], "").await.expect(406);
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let table = server.call("GET", MAPS, &[("accept", table)], "").await.expect(200);
    assert_eq!((table["kind"].as_str(), &table["rows"][0]["cells"][0]), (Some("Table"), &json!("x")));
    let pretty = server.call("GET", &format!("{MAPS}/x"), &[("user-agent", "curl/8")], "").await;
    assert!(pretty.bytes.starts_with(b"{\n"));
    let mut big = map("big");
    big["data"]["a"] = "x".repeat(200_000).into();
    server.post(MAPS, big).await.expect(201);
    let zipped = server.call("GET", MAPS, &[("accept-encoding", "gzip")], "").await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    assert!(zipped.bytes.len() < 10_000);
}

#[tokio::test]
async fn api_services_mirror_the_served_groups() {
    let server = Server::start().await;
    server.install_foos().await;
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let deadline = tokio::time::Instant::now() + crate::harness::DEADLINE;
    loop {
        let mut tail = server.storage.index().follow_all(server.storage.index().revision()).unwrap();
        let list = server.get(path).await.expect(200);
        let names: Vec<&str> =
            list["items"].as_array().unwrap().iter().filter_map(|i| i["metadata"]["name"].as_str()).collect();
        if ["v1.", "v1.apps", "v1.x.io"].iter().all(|name| names.contains(name)) {
            break;
        }
        tokio::time::timeout_at(deadline, tail.changed()).await.expect("APIServices");
    }
}
