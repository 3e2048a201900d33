//! A small API server that knows one Secret, over real HTTP: on TCP for the real binary, on pipes for agents in this
//! process.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{broadcast, mpsc},
};

pub type Data = BTreeMap<String, Vec<u8>>;
type Hook = Box<dyn FnMut(&mut Data) + Send>;

/// The server. Cloning it gives another handle.
#[derive(Clone)]
pub struct FakeApi {
    inner: Arc<Mutex<Inner>>,
    events: broadcast::Sender<String>,
}

struct Inner {
    revision: u64,
    uid: u64,
    data: Option<Data>,
    /// Every version that an agent wrote.
    written: Vec<Data>,
    requests: Vec<String>,
    down: bool,
    /// Runs before the next update is judged, as a concurrent writer.
    before_put: Option<Hook>,
    /// Status to answer updates with.
    refuse_puts: Option<u16>,
    token: String,
    /// Annotations of the secret, as the server side writes them.
    annotations: BTreeMap<String, String>,
    /// What is below `/assets/`.
    assets: BTreeMap<String, Bytes>,
    /// State of the dice; 0 for a server that always works.
    chaos: u64,
}

/// What goes wrong with a request.
#[derive(Clone, Copy)]
enum Trouble {
    None,
    Status(u16),
    Garbage,
    /// The connection breaks before the request takes effect.
    Break,
    /// The connection breaks after it took effect.
    BreakAfter,
    Hang,
}

pub const TOKEN: &str = "the-agents-own-token";

impl FakeApi {
    pub fn new() -> Self {
        let inner = Inner {
            revision: 100,
            uid: 0,
            data: None,
            written: Vec::new(),
            requests: Vec::new(),
            down: false,
            before_put: None,
            refuse_puts: None,
            token: TOKEN.into(),
            annotations: BTreeMap::new(),
            assets: BTreeMap::new(),
            chaos: 0,
        };
        Self { inner: Arc::new(Mutex::new(inner)), events: broadcast::channel(256).0 }
    }

    /// Creates the secret anew, with another uid.
    pub fn create(&self, entries: &[(&str, &str)]) {
        let mut inner = self.inner.lock().unwrap();
        inner.uid += 1;
        inner.revision += 1;
        inner.data =
            Some(entries.iter().map(|(key, value)| ((*key).into(), value.as_bytes().to_vec())).collect());
        self.emit("ADDED", &inner);
    }

    pub fn delete(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.revision += 1;
        self.emit("DELETED", &inner);
        inner.data = None;
    }

    /// Changes the secret as the server side does.
    pub fn change(&self, change: impl FnOnce(&mut Data)) {
        let mut inner = self.inner.lock().unwrap();
        inner.revision += 1;
        change(inner.data.as_mut().unwrap());
        self.emit("MODIFIED", &inner);
    }

    /// Writes a plan as the planner does.
    pub fn plan(&self, plan: &str, state: Option<&str>) {
        self.change(|data| {
            data.insert("plan".into(), plan.as_bytes().to_vec());
            data.remove("probe-statuses");
            if let Some(state) = state {
                data.insert("plan-state".into(), state.as_bytes().to_vec());
            }
        });
    }

    /// Offers an agent for this machine, as the manager does: beside the plan, without touching it.
    pub fn offer(&self, agent: &[u8]) {
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let sum = drover_plan::checksum(agent);
        let offer = drover_plan::AgentOffer { sha256: [(arch.to_owned(), sum)].into() };
        let mut inner = self.inner.lock().unwrap();
        inner.assets.insert(drover_plan::AgentOffer::asset(arch), Bytes::copy_from_slice(agent));
        inner.annotations.insert(drover_plan::AGENT_OFFER.into(), offer.to_text());
        inner.revision += 1;
        self.emit("MODIFIED", &inner);
    }

    /// The offer stays, but something else lies there.
    pub fn spoil_offer(&self, agent: &[u8]) {
        for asset in self.inner.lock().unwrap().assets.values_mut() {
            *asset = Bytes::copy_from_slice(agent);
        }
    }

    /// Connections break and new ones are refused, until it is up again.
    pub fn set_down(&self, down: bool) {
        self.inner.lock().unwrap().down = down;
        if down {
            // Ends the watches.
            let _ = self.events.send(String::new());
        }
    }

    pub fn before_next_put(&self, hook: impl FnMut(&mut Data) + Send + 'static) {
        self.inner.lock().unwrap().before_put = Some(Box::new(hook));
    }

    pub fn refuse_puts(&self, code: Option<u16>) {
        self.inner.lock().unwrap().refuse_puts = code;
    }

    /// From now on every third request or so goes wrong, in one way or another; 0 ends it.
    pub fn set_chaos(&self, seed: u64) {
        self.inner.lock().unwrap().chaos = seed;
    }

    fn trouble(&self) -> Trouble {
        let mut inner = self.inner.lock().unwrap();
        if inner.chaos == 0 {
            return Trouble::None;
        }
        inner.chaos = inner
            .chaos
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407)
            .max(1);
        match (inner.chaos >> 33) % 30 {
            0 => Trouble::Status(500),
            1 => Trouble::Status(503),
            2 => Trouble::Status(429),
            3 => Trouble::Status(409),
            4 => Trouble::Status(403),
            5 => Trouble::Garbage,
            6 => Trouble::Break,
            7 | 8 => Trouble::BreakAfter,
            9 => Trouble::Hang,
            _ => Trouble::None,
        }
    }

    pub fn set_token(&self, token: &str) {
        self.inner.lock().unwrap().token = token.into();
        let _ = self.events.send(String::new());
    }

    pub fn data(&self) -> Data {
        self.inner.lock().unwrap().data.clone().unwrap_or_default()
    }

    pub fn text(&self, key: &str) -> String {
        self.data().get(key).map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    pub fn revision(&self) -> u64 {
        self.inner.lock().unwrap().revision
    }

    pub fn written(&self) -> Vec<Data> {
        self.inner.lock().unwrap().written.clone()
    }

    pub fn requests(&self) -> Vec<String> {
        self.inner.lock().unwrap().requests.clone()
    }

    /// A compressed map of the secret.
    pub fn map(&self, key: &str) -> BTreeMap<String, Value> {
        drover_agent::remote::gzip_json::decode(self.data().get(key))
    }

    /// A saved output.
    pub fn output(&self, key: &str, name: &str) -> String {
        let map = self.map(key);
        let text = map.get(name).and_then(Value::as_str).unwrap_or_default();
        String::from_utf8_lossy(&STANDARD.decode(text).unwrap()).into_owned()
    }

    /// Waits for the secret to be so.
    pub async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        self.until_within(Duration::from_secs(60), what, condition).await;
    }

    pub async fn until_within(&self, limit: Duration, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + limit;
        while !condition(self) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited in vain: {what}; the secret is {}",
                self.describe()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_text(&self, key: &str, value: &str) {
        self.until(&format!("{key} = {value}"), |api| api.text(key) == value).await;
    }

    pub fn describe(&self) -> String {
        self.data()
            .iter()
            .map(|(key, value)| {
                format!("\n  {key}: {}", String::from_utf8_lossy(&value[..value.len().min(120)]))
            })
            .collect()
    }

    fn emit(&self, kind: &str, inner: &Inner) {
        let _ = self.events.send(json!({"type": kind, "object": object(inner)}).to_string() + "\n");
    }

    /// Listens on a free port.
    pub async fn listen(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if api.is_down() {
                    continue;
                }
                let api = api.clone();
                tokio::spawn(async move { api.serve(stream).await });
            }
        });
        address
    }

    /// Listens on a free port with TLS.
    pub async fn listen_tls(&self, config: Arc<rustls::ServerConfig>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (api, acceptor) = (api.clone(), tokio_rustls::TlsAcceptor::from(config.clone()));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        api.serve(stream).await;
                    }
                });
            }
        });
        address
    }

    pub fn is_down(&self) -> bool {
        self.inner.lock().unwrap().down
    }

    /// Serves one connection.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let api = self.clone();
        let service = hyper::service::service_fn(move |request| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
    }

    pub async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, std::io::Error> {
        if self.is_down() {
            return Err(std::io::Error::other("down"));
        }
        let trouble = self.trouble();
        match trouble {
            Trouble::None | Trouble::BreakAfter => {}
            Trouble::Status(code) => return Ok(status(code, "chaos")),
            Trouble::Garbage => return Ok(Response::new(Full::new(Bytes::from_static(b"<html>")).boxed())),
            Trouble::Break => return Err(std::io::Error::other("chaos")),
            Trouble::Hang => std::future::pending().await,
        }
        let answer = self.handle(request).await;
        if matches!(trouble, Trouble::BreakAfter) { Err(std::io::Error::other("chaos")) } else { answer }
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, std::io::Error> {
        let line = format!("{} {}", request.method(), request.uri());
        let authorized = {
            let mut inner = self.inner.lock().unwrap();
            inner.requests.push(line);
            let expected = format!("Bearer {}", inner.token);
            request.headers().get("authorization").is_some_and(|value| value == expected.as_str())
        };
        let (path, query) =
            (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        if path == "/version" {
            return Ok(full(StatusCode::OK, &json!({"major": "1"})));
        }
        if let Some(name) = path.strip_prefix("/assets/") {
            assert!(!request.headers().contains_key("authorization"), "assets need no credential");
            return Ok(match self.inner.lock().unwrap().assets.get(name) {
                None => status(404, "no such asset"),
                Some(asset) => Response::new(Full::new(asset.clone()).boxed()),
            });
        }
        if !authorized {
            return Ok(status(401, "Unauthorized"));
        }
        match (request.method().clone(), path.as_str()) {
            (Method::GET, "/api/v1/namespaces/fleet-default/secrets") => {
                assert!(query.contains("fieldSelector=metadata.name%3Dthe-machine-plan"), "{query}");
                Ok(if query.contains("watch=true") { self.watch(&query) } else { self.list() })
            }
            (Method::GET, "/api/v1/namespaces/fleet-default/secrets/the-machine-plan") => {
                let inner = self.inner.lock().unwrap();
                Ok(match &inner.data {
                    None => status(404, "not found"),
                    Some(_) => full(StatusCode::OK, &object(&inner)),
                })
            }
            (Method::PUT, "/api/v1/namespaces/fleet-default/secrets/the-machine-plan") => {
                let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
                Ok(self.put(&serde_json::from_slice(&body).unwrap()))
            }
            _ => Ok(status(403, "forbidden: the agent may get, list, watch and update one secret")),
        }
    }

    fn list(&self) -> Response<BoxBody<Bytes, Infallible>> {
        let inner = self.inner.lock().unwrap();
        let mut items = Vec::new();
        if inner.data.is_some() {
            let mut item = object(&inner);
            item.as_object_mut().unwrap().remove("kind");
            item.as_object_mut().unwrap().remove("apiVersion");
            items.push(item);
        }
        full(
            StatusCode::OK,
            &json!({"metadata": {"resourceVersion": inner.revision.to_string()}, "items": items}),
        )
    }

    fn watch(&self, query: &str) -> Response<BoxBody<Bytes, Infallible>> {
        let inner = self.inner.lock().unwrap();
        let from: u64 =
            query.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
        let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(64);
        let mut events = self.events.subscribe();
        // What was missed: the latest version stands for all.
        let missed = (from < inner.revision).then(|| match &inner.data {
            Some(_) => json!({"type": "MODIFIED", "object": object(&inner)}).to_string() + "\n",
            None => {
                json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
                    .to_string()
                    + "\n"
            }
        });
        drop(inner);
        tokio::spawn(async move {
            if let Some(missed) = missed {
                let _ = sender.send(Ok(Frame::data(missed.into()))).await;
            }
            while let Ok(event) = events.recv().await {
                if event.is_empty() || sender.send(Ok(Frame::data(event.into()))).await.is_err() {
                    break;
                }
            }
        });
        let stream = Frames(receiver);
        Response::new(StreamBody::new(stream).boxed())
    }

    fn put(&self, body: &Value) -> Response<BoxBody<Bytes, Infallible>> {
        let mut inner = self.inner.lock().unwrap();
        if let Some(code) = inner.refuse_puts {
            return status(code, "refused");
        }
        if let Some(mut hook) = inner.before_put.take() {
            hook(inner.data.as_mut().unwrap());
            inner.revision += 1;
            self.emit("MODIFIED", &inner);
        }
        if inner.data.is_none() {
            return status(404, "not found");
        }
        assert_eq!(body["metadata"]["labels"]["keep"], "me", "foreign fields survive");
        assert_eq!(body["kind"], "Secret");
        if body["metadata"]["resourceVersion"].as_str() != Some(inner.revision.to_string().as_str()) {
            return status(409, "the object has been modified");
        }
        let data: Data = body["data"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), STANDARD.decode(value.as_str().unwrap()).unwrap()))
            .collect();
        if data.values().map(Vec::len).sum::<usize>() > 1024 * 1024 {
            return status(422, "Too long: may not be more than 1048576 bytes");
        }
        inner.revision += 1;
        inner.data = Some(data.clone());
        inner.written.push(data);
        self.emit("MODIFIED", &inner);
        full(StatusCode::OK, &object(&inner))
    }
}

struct Frames(mpsc::Receiver<Result<Frame<Bytes>, Infallible>>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

fn object(inner: &Inner) -> Value {
    let data: BTreeMap<&String, String> =
        inner.data.iter().flatten().map(|(key, value)| (key, STANDARD.encode(value))).collect();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "rke.cattle.io/machine-plan",
        "metadata": {
            "name": "the-machine-plan", "namespace": "fleet-default", "uid": format!("uid-{}", inner.uid),
            "resourceVersion": inner.revision.to_string(), "labels": {"keep": "me"},
            "annotations": inner.annotations,
        },
        "data": data,
    })
}

fn full(code: StatusCode, value: &Value) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed());
    *response.status_mut() = code;
    response
}

pub fn status(code: u16, message: &str) -> Response<BoxBody<Bytes, Infallible>> {
    let body = json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
    full(StatusCode::from_u16(code).unwrap(), &body)
}

/// The text of a connection file.
pub fn connection(server: &str, token: &str, ca: Option<&str>) -> String {
    let mut cluster = json!({"server": server});
    if let Some(ca) = ca {
        cluster["certificate-authority-data"] = STANDARD.encode(ca).into();
    }
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{"name": "agent", "cluster": cluster}],
        "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
        "users": [{"name": "agent", "user": {"token": token}}],
    });
    json!({"kubeConfig": kubeconfig.to_string(), "namespace": "fleet-default", "secretName": "the-machine-plan"})
        .to_string()
}

pub fn sum(plan: &str) -> String {
    drover_plan::checksum(plan.as_bytes())
}
