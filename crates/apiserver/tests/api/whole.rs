//! A complete server, started in one call.

use std::sync::Arc;

use bytes::Bytes;
use drover_apiserver::UserInfo;
use drover_apiserver::auth::pki::Pki;
use drover_apiserver::clock::{Clock, SystemClock};
use drover_apiserver::controllers::ControllerOptions;
use drover_apiserver::embedded::{Embedded, EmbeddedOptions};
use drover_apiserver::storage::MemoryStorage;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn call(
    server: &Embedded,
    user: Option<UserInfo>,
    method: &str,
    path: &str,
    body: Value,
) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    if let Some(user) = user {
        request = request.extension(user);
    }
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let response = server.service().oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn an_embedded_server_authenticates_authorizes_and_serves_definitions_once() {
    let clock = Arc::new(SystemClock);
    let options = EmbeddedOptions {
        storage: Arc::new(MemoryStorage::new()),
        pki: Arc::new(Pki::in_memory(clock.now()).unwrap()),
        clock,
        version: "v1.36.3".into(),
        admission: Vec::new(),
        authenticators: Vec::new(),
        anonymous: false,
        server_url: "https://127.0.0.1".into(),
        controllers: ControllerOptions::default(),
    };
    let server = Embedded::start(options).await.unwrap();
    let admin = Some(UserInfo::system_masters("admin"));
    let nobody = Some(UserInfo { name: "nobody".into(), ..UserInfo::default() });
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(call(&server, None, "GET", secrets, json!(null)).await.0, 401);
    assert_eq!(call(&server, nobody, "GET", secrets, json!(null)).await.0, 403);
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"metadata": {"name": "foos.x.io"}, "spec": {
        "group": "x.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
    }});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(call(&server, admin.clone(), "POST", definitions, definition).await.0, 201);
    let foos = "/apis/x.io/v1/namespaces/default/foos";
    let foo = json!({"apiVersion": "x.io/v1", "kind": "Foo", "metadata": {"name": "a"}});
    assert_eq!(call(&server, admin.clone(), "POST", foos, foo.clone()).await.0, 201);
    let lost = "/apis/x.io/v1/namespaces/nowhere/foos";
    assert_eq!(call(&server, admin.clone(), "POST", lost, foo).await.0, 404);
    let (code, stored) = call(&server, admin, "GET", &format!("{definitions}/foos.x.io"), json!(null)).await;
    let established = stored["status"]["conditions"].as_array().unwrap().iter();
    assert_eq!(
        (code, established.filter(|c| c["type"] == "Established" && c["status"] == "True").count()),
        (200, 1)
    );
}
