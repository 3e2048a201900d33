//! An in-process server and helpers to call it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drover_apiserver::http::ApiBody;
use drover_apiserver::storage::{MemoryStorage, Storage};
use drover_apiserver::{ApiServer, Options};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const DEADLINE: Duration = Duration::from_secs(90);
pub(crate) const MAPS: &str = "/api/v1/namespaces/a/configmaps";

pub(crate) struct Server {
    pub(crate) api: ApiServer,
    pub(crate) storage: Arc<dyn Storage>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        let text = String::from_utf8_lossy(&self.bytes);
        assert_eq!(self.code, code, "{text}");
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| Value::from(text.into_owned()))
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::over(Arc::new(MemoryStorage::new())).await
    }

    pub(crate) async fn over(storage: Arc<dyn Storage>) -> Self {
        let options = Options { storage: storage.clone(), ..Options::default() };
        Self { api: ApiServer::start(options).await.unwrap(), storage }
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<ApiBody> {
        tokio::time::timeout(DEADLINE, self.api.service().oneshot(request)).await.unwrap().unwrap()
    }

    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.send(request.body(Full::new(body.into())).unwrap()).await;
        let (head, body) = response.into_parts();
        let bytes = tokio::time::timeout(DEADLINE, body.collect()).await.unwrap().unwrap().to_bytes();
        Answer { code: head.status.as_u16(), headers: head.headers, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: Value) -> Answer {
        let content_type = format!("application/{kind}");
        self.call("PATCH", path, &[("content-type", &content_type)], body.to_string()).await
    }

    pub(crate) async fn merge(&self, path: &str, body: Value) -> Answer {
        self.patch(path, "merge-patch+json", body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, &[], "").await
    }

    /// A CRD with the status and scale subresources.
    pub(crate) async fn install_foos(&self) {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}, "x": {"type": "integer"}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }});
        let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
        let version = json!({
            "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": scale},
        });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "foos.x.io"},
            "spec": {
                "group": "x.io", "scope": "Namespaced", "versions": [version],
                "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            },
        });
        self.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    }
}

pub(crate) const FOOS: &str = "/apis/x.io/v1/namespaces/a/foos";

pub(crate) fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

pub(crate) fn foo(name: &str) -> Value {
    json!({"apiVersion": "x.io/v1", "kind": "Foo", "metadata": {"name": name}, "spec": {"x": 1}})
}
