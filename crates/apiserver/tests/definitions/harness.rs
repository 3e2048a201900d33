//! A server with its own port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use drover_apiserver::storage::{MemoryStorage, Storage};
use drover_apiserver::{ApiServer, Options};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tower::ServiceExt;

pub(crate) struct Server {
    pub(crate) server: ApiServer,
    pub(crate) address: SocketAddr,
    pub(crate) home: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::over(Arc::new(MemoryStorage::new())).await
    }

    pub(crate) async fn over(storage: Arc<dyn Storage>) -> Server {
        let server = ApiServer::start(Options { storage, ..Options::default() }).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = server.service();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let service = TowerToHyperService::new(service.clone());
                tokio::spawn(async move {
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let home = tempfile::tempdir().unwrap();
        let server = Server { server, address, home, _tasks: tasks };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        server.post("/api/v1/namespaces", &namespace).await;
        server
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response<Vec<u8>> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(bytes::Bytes::copy_from_slice(body))).unwrap();
        let response = self.server.service().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Response::from_parts(parts, body.collect().await.unwrap().to_bytes().to_vec())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let response = self.send(Method::GET, path, &[], b"").await;
        serde_json::from_slice(response.body()).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, object: &Value) -> Value {
        let headers = [("content-type", "application/json")];
        let response = self.send(Method::POST, path, &headers, object.to_string().as_bytes()).await;
        serde_json::from_slice(response.body()).unwrap()
    }

    pub(crate) async fn table(&self, path: &str) -> Value {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let response = self.send(Method::GET, path, &[("accept", accept)], b"").await;
        serde_json::from_slice(response.body()).unwrap()
    }

    /// Writes a file for kubectl.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs kubectl; `None` if it is not installed.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Option<Output> {
        let output = Command::new("kubectl")
            .arg(format!("--server=http://{}", self.address))
            .args(args)
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.home.path().join("none"))
            .kill_on_drop(true)
            .output();
        let output = match tokio::time::timeout(std::time::Duration::from_secs(60), output).await {
            Ok(Ok(output)) => output,
            Ok(Err(_)) => {
                eprintln!("SKIPPED: kubectl is not installed");
                return None;
            }
            Err(_) => panic!("kubectl {args:?} takes more than a minute"),
        };
        Some(Output {
            ok: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    /// Checks that it succeeded with an empty stderr.
    pub(crate) fn clean(self) -> String {
        assert!(self.ok && self.err.is_empty(), "{self:?}");
        self.out
    }
}

/// The CRDs of Cluster API from Go's module cache; `None`, with a message, without go or network.
pub(crate) fn capi_crds() -> Option<Vec<(String, Value)>> {
    const MODULE: &str = "sigs.k8s.io/cluster-api@v1.13.4";
    let output = std::process::Command::new("go")
        .args(["mod", "download", "-json", MODULE])
        .current_dir(std::env::temp_dir())
        .env("GOFLAGS", "-mod=mod")
        .output()
        .ok();
    let dir = output
        .and_then(|o| serde_json::from_slice::<Value>(&o.stdout).ok())
        .and_then(|answer| answer["Dir"].as_str().map(PathBuf::from));
    let Some(dir) = dir else {
        eprintln!("SKIPPED: {MODULE} is not available (no go, or no network)");
        return None;
    };
    let mut crds = Vec::new();
    for entry in std::fs::read_dir(dir.join("config/crd/bases")).expect("the module has CRDs") {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
        crds.push((text, crd));
    }
    crds.sort_by_key(|(_, crd)| crd["metadata"]["name"].to_string());
    Some(crds)
}

pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(crate) fn tank_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "tanks.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "tanks", "kind": "Tank", "shortNames": ["tk"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
                ],
                "schema": {"openAPIV3Schema": {"type": "object", "description": "Tank rolls.", "properties": {
                    "spec": {"type": "object", "description": "What is wanted.", "properties": {
                        "size": {"type": "integer", "default": 1, "description": "How big it is."},
                        "color": {"type": "string", "enum": ["green", "grey"]},
                        "crew": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                                 "items": {"type": "object", "required": ["name"], "properties": {
                                     "name": {"type": "string"}, "rank": {"type": "string", "default": "private"}}}}
                    }},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}}
                }}}
            }]
        }
    })
}
