//! A cluster's API with the Secrets of one namespace, which fills in tokens and reports its callers.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::tls::Authority;

const SECRETS: &str = "/api/v1/namespaces/cattle-system/secrets";

#[derive(Clone)]
pub struct Downstream {
    state: Arc<Mutex<State>>,
    revision: Arc<watch::Sender<u64>>,
    pub authority: Arc<Authority>,
    pub address: SocketAddr,
}

#[derive(Default)]
struct State {
    secrets: BTreeMap<String, Value>,
    account: bool,
    tokens: u32,
    writes: Vec<String>,
}

impl Downstream {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cluster = Self {
            state: Arc::default(),
            revision: Arc::new(watch::channel(1).0),
            authority: Arc::new(Authority::new()),
            address: listener.local_addr().unwrap(),
        };
        let (api, acceptor) = (cluster.clone(), cluster.authority.acceptor());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (api, acceptor) = (api.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        let api = api.clone();
                        async move { api.answer(request).await }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        cluster
    }

    /// The admin kubeconfig, as a distribution writes it.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "default",
            "clusters": [{"name": "default", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority-data": STANDARD.encode(&self.authority.pem),
            }}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
            "users": [{"name": "default", "user": {"token": "admin"}}],
        })
        .to_string()
    }

    pub fn make_account(&self) {
        self.state.lock().unwrap().account = true;
    }

    /// Adds the Secret that the manifest of the cluster agent contains.
    pub fn put_credentials(&self, name: &str, created: &str, url: &str, token: &str) {
        self.put(json!({
            "metadata": {
                "name": name, "creationTimestamp": created, "annotations": {drover_plan::AGENT_TUNNEL: "true"},
            },
            "type": "Opaque",
            "data": {
                "url": STANDARD.encode(url), "token": STANDARD.encode(token), "namespace": STANDARD.encode("c-m-1"),
            },
        }));
    }

    pub fn delete(&self, name: &str) {
        assert!(self.state.lock().unwrap().secrets.remove(name).is_some());
        self.bump();
    }

    /// The Secrets that were created through the API.
    pub fn writes(&self) -> Vec<String> {
        self.state.lock().unwrap().writes.clone()
    }

    fn put(&self, secret: Value) {
        let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
        self.state.lock().unwrap().secrets.insert(name, secret);
        self.bump();
    }

    fn bump(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
        let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let caller =
            authorization.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if path == "/whoami" {
            return Ok(answer(200, &json!(caller)));
        }
        if caller != "admin" {
            return Ok(answer(401, &json!({"message": "Unauthorized"})));
        }
        Ok(match (request.method(), path) {
            (&Method::GET, SECRETS) if query.contains("watch=true") => self.watch(query),
            (&Method::GET, SECRETS) => {
                let revision = self.revision.borrow().to_string();
                let items: Vec<Value> = self.state.lock().unwrap().secrets.values().cloned().collect();
                answer(200, &json!({"metadata": {"resourceVersion": revision}, "items": items}))
            }
            (&Method::GET, "/api/v1/namespaces/cattle-system/serviceaccounts/cattle") => {
                let found = self.state.lock().unwrap().account;
                answer(if found { 200 } else { 404 }, &json!({"message": "account"}))
            }
            (&Method::POST, SECRETS) => {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                self.create(serde_json::from_slice(&body).unwrap())
            }
            _ => answer(403, &json!({"message": "forbidden"})),
        })
    }

    fn create(&self, secret: Value) -> Response<BoxBody<Bytes, Infallible>> {
        assert_eq!(secret["type"], "kubernetes.io/service-account-token");
        assert_eq!(secret["metadata"]["annotations"]["kubernetes.io/service-account.name"], "cattle");
        let mut filled = secret.clone();
        {
            let mut state = self.state.lock().unwrap();
            let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
            if state.secrets.contains_key(&name) {
                return answer(409, &json!({"message": "exists"}));
            }
            state.writes.push(name);
            state.tokens += 1;
            filled["data"] = json!({"token": STANDARD.encode(format!("token-of-cattle-{}", state.tokens))});
        }
        self.put(secret.clone());
        // A controller fills it in a moment later.
        let api = self.clone();
        tokio::spawn(async move { api.put(filled) });
        answer(201, &secret)
    }

    fn watch(&self, query: &str) -> Response<BoxBody<Bytes, Infallible>> {
        let from: u64 =
            query.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
        let mut revision = self.revision.subscribe();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            tokio::select! {
                _ = revision.wait_for(|now| *now > from) => {}
                () = sender.closed() => return,
            }
            let _ = sender.send(Ok(Frame::data(Bytes::from_static(b"{\"type\":\"MODIFIED\"}\n")))).await;
            sender.closed().await;
        });
        Response::new(StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver)).boxed())
    }
}

fn answer(code: u16, value: &Value) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}
