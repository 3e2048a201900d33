//! An in-process server, and measured requests.

use std::time::Duration;

use bytes::Bytes;
use drover_apiserver::{ApiServer, Options};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::meter::{Meter, Taken};

pub(crate) const MAPS: &str = "/api/v1/namespaces/a/configmaps";
pub(crate) const FOOS: &str = "/apis/x.io/v1/namespaces/a/foos";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) const MIB: usize = 1 << 20;
/// Memory limit of one request. A body may be 3 MiB, its values 64 MiB, and a write has a few copies of them.
pub(crate) const MEMORY: usize = 400 * MIB;
/// Long enough for an unoptimised build on a busy host, short enough to detect quadratic algorithms.
pub(crate) const TIME: Duration = Duration::from_secs(40);

pub(crate) struct Server(ApiServer);

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) bytes: Bytes,
    pub(crate) taken: Taken,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        let text = String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(2000)]);
        assert_eq!(self.code, code, "{text}");
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    /// Checks the code, and that the request stayed within the limits. Prints the measurements.
    #[track_caller]
    pub(crate) fn bounded(self, what: &str, sent: usize, code: u16) -> Value {
        let Taken { peak, time } = self.taken;
        println!(
            "{what}: sent {sent} bytes, answered {} with {} bytes, took {} MiB and {time:?}",
            self.code,
            self.bytes.len(),
            peak / MIB
        );
        assert!(peak < MEMORY, "{what}: {} MiB", peak / MIB);
        assert!(time < TIME, "{what}: {time:?}");
        self.expect(code)
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self(ApiServer::start(Options::default()).await.unwrap())
    }

    /// Sends a request, reads the whole response, and measures both.
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
        let request = request.body(Full::new(body.into())).unwrap();
        let meter = Meter::start();
        let work = async {
            let (head, body) = self.0.service().oneshot(request).await.unwrap().into_parts();
            (head.status.as_u16(), body.collect().await.unwrap().to_bytes())
        };
        let (code, bytes) = tokio::time::timeout(DEADLINE, work).await.expect("the request must end");
        Answer { code, bytes, taken: meter.taken() }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.call("POST", path, &[("content-type", "application/json")], body).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: impl Into<Bytes>) -> Answer {
        self.call("PATCH", path, &[("content-type", &format!("application/{kind}"))], body).await
    }

    pub(crate) async fn get(&self, path: &str, accept: &str) -> Answer {
        self.call("GET", path, &[("accept", accept)], "").await
    }

    /// A CRD `foos.x.io` with this schema of `spec`.
    pub(crate) async fn define(&self, spec: Value, columns: Value) -> Answer {
        self.post(CRDS, definition(spec, columns).to_string()).await
    }
}

pub(crate) fn definition(spec: Value, columns: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.x.io"},
        "spec": {
            "group": "x.io", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "additionalPrinterColumns": columns,
            }],
        },
    })
}

pub(crate) fn anything() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

pub(crate) fn map(name: &str, data: Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}).to_string()
}

/// A Foo with a spec in JSON text.
pub(crate) fn foo(name: &str, spec: &str) -> String {
    format!(r#"{{"apiVersion":"x.io/v1","kind":"Foo","metadata":{{"name":"{name}"}},"spec":{spec}}}"#)
}
