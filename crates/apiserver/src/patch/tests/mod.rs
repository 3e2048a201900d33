//! Patches from a client's view, through the in-process service.

mod apply;
mod custom;
mod plain;

use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{ApiServer, Options};

const APPLY: &str = "application/apply-patch+yaml";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

struct Client {
    server: ApiServer,
}

impl Client {
    async fn new() -> Self {
        Self { server: ApiServer::start(Options::default()).await.unwrap() }
    }

    async fn call(&self, method: Method, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", content_type)
            .header("User-Agent", "tester/v1 (linux)")
            .body(Full::new(bytes::Bytes::from(body)))
            .unwrap();
        let response = self.server.service().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str) -> Value {
        self.expect(200, Method::GET, path, "application/json", &Value::Null).await
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.expect(201, Method::POST, path, "application/json", body).await
    }

    async fn put(&self, path: &str, body: &Value) -> Value {
        self.expect(200, Method::PUT, path, "application/json", body).await
    }

    async fn patch(&self, content_type: &str, path: &str, body: &Value) -> Value {
        self.expect(200, Method::PATCH, path, content_type, body).await
    }

    /// An apply that succeeds, as a create or an update.
    async fn apply(&self, path: &str, manager: &str, body: &Value) -> Value {
        let (code, object) = self.try_apply(path, manager, body).await;
        assert!(code == 200 || code == 201, "{code}: {object}");
        object
    }

    async fn try_apply(&self, path: &str, manager: &str, body: &Value) -> (u16, Value) {
        self.call(Method::PATCH, &format!("{path}?fieldManager={manager}"), APPLY, body).await
    }

    async fn expect(&self, code: u16, method: Method, path: &str, content_type: &str, body: &Value) -> Value {
        let (got, object) = self.call(method, path, content_type, body).await;
        assert_eq!(got, code, "{object}");
        object
    }
}

/// The fields of a manager, by name, operation and subresource.
fn owned(object: &Value, manager: &str, operation: &str, subresource: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let mine = |entry: &&Value| {
        entry["manager"] == manager
            && entry["operation"] == operation
            && entry["subresource"].as_str().unwrap_or_default() == subresource
    };
    entries.iter().find(mine).map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, "data": data})
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONFIG_MAP: &str = "/api/v1/namespaces/default/configmaps/c";

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "d"}},
            "template": {
                "metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "a", "image": "a:1", "ports": [{"containerPort": 80}]}]},
            },
        },
    })
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/d";
