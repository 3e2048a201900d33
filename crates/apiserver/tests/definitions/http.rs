//! Custom resources over HTTP.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{CRDS, Server, tank_crd};

#[tokio::test]
async fn check_4_discovery_and_openapi_change_with_the_crd() {
    let server = Server::start().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let discovery = async || server.send(Method::GET, "/apis", &[("accept", accept)], b"").await;
    let (before, index_before) = (discovery().await, server.get("/openapi/v3").await);
    server.post(CRDS, &tank_crd()).await;
    let (after, index) = (discovery().await, server.get("/openapi/v3").await);
    assert_ne!(before.headers()["etag"], after.headers()["etag"]);
    assert!(String::from_utf8_lossy(after.body()).contains("\"resource\":\"tanks\""));
    assert_eq!(index_before["paths"]["api/v1"], index["paths"]["api/v1"]);
    assert!(index_before["paths"].get("apis/example.com/v1").is_none());
    let url =
        index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().expect("published").to_owned();

    let response = server.send(Method::GET, &url, &[], b"").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["cache-control"], "public, immutable");
    let document: Value = serde_json::from_slice(response.body()).unwrap();
    let patch = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/tanks/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Tank");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    let schema = &document["components"]["schemas"]["com.example.v1.Tank"];
    assert_eq!(schema["x-kubernetes-group-version-kind"][0]["group"], "example.com");
    assert_eq!(schema["properties"]["spec"]["properties"]["crew"]["x-kubernetes-list-type"], "map");
    let meta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(schema["properties"]["metadata"]["allOf"][0]["$ref"], meta);

    let etag = response.headers()["etag"].to_str().unwrap().to_owned();
    let again = server.send(Method::GET, &url, &[("if-none-match", &etag)], b"").await;
    assert_eq!(again.status(), 304);
    let stale = server.send(Method::GET, "/openapi/v3/apis/example.com/v1?hash=OLD", &[], b"").await;
    assert_eq!((stale.status().as_u16(), stale.headers()["location"].to_str().unwrap()), (301, url.as_str()));
    let protobuf = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    let refused = server.send(Method::GET, &url, &[("accept", protobuf)], b"").await;
    assert_eq!(refused.status(), 406);
    let absent = server.send(Method::GET, "/openapi/v3/apis/none/v1", &[], b"").await;
    assert_eq!(absent.status(), 404);
}

/// Every reference in every document can be resolved, and built-in kinds support strategic patches.
#[tokio::test]
async fn references_in_all_documents_can_be_resolved() {
    fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
        match value {
            Value::Object(object) => {
                out.extend(object.get("$ref").and_then(Value::as_str));
                object.values().for_each(|v| references(v, out));
            }
            Value::Array(list) => list.iter().for_each(|v| references(v, out)),
            _ => {}
        }
    }
    let server = Server::start().await;
    let index = server.get("/openapi/v3").await;
    let started = std::time::Instant::now();
    for (path, entry) in index["paths"].as_object().unwrap() {
        let document = server.get(entry["serverRelativeURL"].as_str().unwrap()).await;
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").expect(reference);
            assert!(document["components"]["schemas"].get(name).is_some(), "{path}: {name}");
        }
    }
    eprintln!("{} documents in {:?}", index["paths"].as_object().unwrap().len(), started.elapsed());
    let apps = server.get("/openapi/v3/apis/apps/v1").await;
    let patch = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    let pod = &apps["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(pod["x-kubernetes-patch-merge-key"], "name");
    assert!(pod["description"].as_str().unwrap().contains("containers"));
    assert_eq!(server.get("/openapi/v2").await["swagger"], "2.0");
}

#[tokio::test]
async fn openapi_v2_is_protobuf_if_requested() {
    let server = Server::start().await;
    let (old, new) = (
        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    );
    for (accept, answered) in [
        (old, new),
        (new, new),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/json"),
    ] {
        let response = server.send(Method::GET, "/openapi/v2", &[("accept", accept)], b"").await;
        assert_eq!(response.status(), 200, "{accept}");
        assert_eq!(response.headers()["content-type"], answered, "{accept}");
    }
    let refused = server.send(Method::GET, "/openapi/v2", &[("accept", "text/html")], b"").await;
    assert_eq!(refused.status(), 406);
}

#[tokio::test]
async fn tables_of_custom_resources() {
    let server = Server::start().await;
    server.post(CRDS, &tank_crd()).await;
    let tanks = "/apis/example.com/v1/namespaces/default/tanks";
    for (name, color) in [("a", "green"), ("b", "grey")] {
        let tank = json!({"apiVersion": "example.com/v1", "kind": "Tank", "metadata": {"name": name}, "spec": {"color": color}});
        server.post(tanks, &tank).await;
    }
    let table = server.table(tanks).await;
    assert_eq!(table["kind"], "Table");
    let names: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Size", "Color", "Age"]);
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], [json!("a"), json!(1), json!("green")]);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let bare = server.table(&format!("{tanks}?includeObject=None&fieldSelector=spec.color=grey")).await;
    assert_eq!(bare["rows"].as_array().unwrap().len(), 1);
    assert!(bare["rows"][0].get("object").is_none());
    let full = server.table(&format!("{tanks}/a?includeObject=Object")).await;
    assert_eq!(full["rows"][0]["object"]["spec"]["color"], "green");
}

/// Check 26: unknown and duplicate fields, strictly and with warnings.
#[tokio::test]
async fn check_26_field_validation() {
    let server = Server::start().await;
    server.post(CRDS, &tank_crd()).await;
    let body = br#"{"apiVersion":"example.com/v1","kind":"Tank","metadata":{"name":"a"},"spec":{"size":1,"size":2,"typo":1}}"#;
    let post = async |validation: &str| {
        let path = format!("/apis/example.com/v1/namespaces/default/tanks?fieldValidation={validation}");
        server.send(Method::POST, &path, &[("content-type", "application/json")], body).await
    };
    let strict = post("Strict").await;
    assert_eq!(strict.status(), 400);
    let text = String::from_utf8_lossy(strict.body()).into_owned();
    assert!(
        text.contains(r#"unknown field \"spec.typo\""#) && text.contains(r#"duplicate field \"spec.size\""#),
        "{text}"
    );
    let warned = post("Warn").await;
    assert_eq!(warned.status(), 201);
    let warnings: Vec<_> = warned.headers().get_all("warning").iter().map(|w| w.to_str().unwrap()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let object: Value = serde_json::from_slice(warned.body()).unwrap();
    assert_eq!(object["spec"], json!({"size": 2}));
}

#[tokio::test]
async fn status_and_scale_subresources() {
    let server = Server::start().await;
    server.post(CRDS, &tank_crd()).await;
    let tanks = "/apis/example.com/v1/namespaces/default/tanks";
    let tank = json!({"apiVersion": "example.com/v1", "kind": "Tank", "metadata": {"name": "a"}, "spec": {"size": 3}, "status": {"size": 9}});
    let made = server.post(tanks, &tank).await;
    assert!(made.get("status").is_none());
    let patch = |path: String, body: &'static str| {
        let server = &server;
        async move {
            let headers = [("content-type", "application/merge-patch+json")];
            let response = server.send(Method::PATCH, &path, &headers, body.as_bytes()).await;
            serde_json::from_slice::<Value>(response.body()).unwrap()
        }
    };
    let status = patch(format!("{tanks}/a/status"), r#"{"spec":{"size":8},"status":{"size":2}}"#).await;
    assert_eq!((&status["spec"]["size"], &status["status"]["size"]), (&json!(3), &json!(2)));
    assert_eq!(status["metadata"]["generation"], 1);
    let scale = server.get(&format!("{tanks}/a/scale")).await;
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(3), &json!(2)));
    patch(format!("{tanks}/a/scale"), r#"{"spec":{"replicas":5}}"#).await;
    let read = server.get(&format!("{tanks}/a")).await;
    assert_eq!((&read["spec"]["size"], &read["metadata"]["generation"]), (&json!(5), &json!(2)));
}

/// A watch as Table sends its columns only once.
#[tokio::test]
async fn table_watches_send_columns_with_the_first_event() {
    let server = Server::start().await;
    server.post(CRDS, &tank_crd()).await;
    let tanks = "/apis/example.com/v1/namespaces/default/tanks";
    for name in ["a", "b"] {
        let metadata = json!({"name": name});
        server
            .post(tanks, &json!({"apiVersion": "example.com/v1", "kind": "Tank", "metadata": metadata}))
            .await;
    }
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let path = format!("{tanks}?watch=true&resourceVersion=0&timeoutSeconds=1");
    let response = server.send(Method::GET, &path, &[("accept", accept)], b"").await;
    let events: Vec<Value> = response
        .body()
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let columns: Vec<usize> =
        events.iter().map(|e| e["object"]["columnDefinitions"].as_array().unwrap().len()).collect();
    assert_eq!(columns, [4, 0], "{events:?}");
    assert_eq!(events[1]["object"]["rows"][0]["cells"][0], "b");
}
