//! A registry whose responses the test controls, over real HTTP and TLS on loopback.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drover_testkit::images::{self, Image};
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;
type Asked = Request<BoxBody<Bytes, hyper::Error>>;

/// The response to one request, instead of the normal one.
#[derive(Clone)]
pub enum Reply {
    Status(u16, Vec<(&'static str, String)>, String),
    /// The right response, but the connection breaks after this many bytes.
    CutAfter(usize),
    /// The right headers with these bytes.
    Bytes(Vec<u8>),
}

/// Which clients get a response.
#[derive(Clone)]
pub enum Door {
    Open,
    Basic(&'static str, &'static str),
    /// Clients with this token, and the URL of the token server.
    Bearer(&'static str, String),
}

#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    pub address: SocketAddr,
    stop: CancellationToken,
}

struct State {
    content: BTreeMap<String, (String, Vec<u8>)>,
    script: Vec<(String, Reply)>,
    log: Vec<Seen>,
    door: Door,
    ranges: bool,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub authorization: Option<String>,
    pub range: Option<String>,
    pub body: String,
}

impl Fake {
    pub async fn plain() -> Self {
        Self::start(None).await
    }

    pub async fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state =
            State { content: BTreeMap::new(), script: vec![], log: vec![], door: Door::Open, ranges: true };
        let fake = Self {
            state: Arc::new(Mutex::new(state)),
            address: listener.local_addr().unwrap(),
            stop: CancellationToken::new(),
        };
        let (serving, stop) = (fake.clone(), fake.stop.clone());
        let handler = move |request: Asked| {
            let fake = serving.clone();
            async move { fake.answer(request).await }
        };
        match tls {
            Some(tls) => {
                let handler =
                    move |request: Request<drover_https::Incoming>| handler(request.map(BodyExt::boxed));
                tokio::spawn(drover_https::serve(listener, tls, handler, stop));
            }
            None => {
                tokio::spawn(async move {
                    loop {
                        let accepted = tokio::select! {
                            () = stop.cancelled() => return,
                            accepted = listener.accept() => accepted,
                        };
                        let Ok((stream, _)) = accepted else { return };
                        let handler = handler.clone();
                        let service =
                            hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                                let answer = handler(request.map(BodyExt::boxed));
                                async move { Ok::<_, std::convert::Infallible>(answer.await) }
                            });
                        let io = hyper_util::rt::TokioIo::new(stream);
                        tokio::spawn(
                            hyper::server::conn::http1::Builder::new().serve_connection(io, service),
                        );
                    }
                });
            }
        }
        fake
    }

    /// Stops listening.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    pub fn put(&self, path: &str, kind: &str, bytes: &[u8]) {
        self.state.lock().unwrap().content.insert(path.to_owned(), (kind.to_owned(), bytes.to_vec()));
    }

    /// An image with a tag, or only with its digest.
    pub fn image(&self, base: &str, tag: Option<&str>, image: &Image) {
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let digest = images::digest(&image.manifest);
        for name in tag.into_iter().chain([digest.as_str()]) {
            self.put(&format!("{base}/manifests/{name}"), kind, &image.manifest);
        }
        for blob in &image.blobs {
            self.put(&format!("{base}/blobs/{}", images::digest(blob)), "application/octet-stream", blob);
        }
    }

    /// The response to the next request whose path contains `part`; several are used in their order.
    pub fn next(&self, part: &str, reply: Reply) {
        self.state.lock().unwrap().script.push((part.to_owned(), reply));
    }

    pub fn status(&self, part: &str, status: u16, times: usize) {
        for _ in 0..times {
            self.next(part, Reply::Status(status, vec![], String::new()));
        }
    }

    pub fn guard(&self, door: Door) {
        self.state.lock().unwrap().door = door;
    }

    pub fn without_ranges(&self) {
        self.state.lock().unwrap().ranges = false;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().log.clone()
    }

    /// The number of requests of a path.
    pub fn count(&self, part: &str) -> usize {
        self.seen().iter().filter(|seen| seen.line.contains(part)).count()
    }

    async fn answer(&self, request: Asked) -> Response<Body> {
        let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (authorization, range) = (text(header::AUTHORIZATION), text(header::RANGE));
        let line = format!("{} {}", request.method(), request.uri());
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        let mut state = self.state.lock().unwrap();
        state.log.push(Seen { line, authorization: authorization.clone(), range: range.clone(), body });
        let scripted = state.script.iter().position(|(part, _)| path.contains(part.as_str()));
        let reply = scripted.map(|index| state.script.remove(index).1);
        if let Some(Reply::Status(status, headers, body)) = &reply {
            return plain(*status, headers, body.clone().into_bytes());
        }
        let challenge = match &state.door {
            Door::Open => None,
            Door::Basic(user, password) => {
                let right = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
                (authorization != Some(right)).then(|| "Basic realm=\"test\"".to_owned())
            }
            Door::Bearer(token, realm) => {
                let right = format!("Bearer {token}");
                (authorization != Some(right)).then(|| {
                    format!("Bearer realm=\"{realm}\",service=\"fake service\",scope=\"repository:a/b:pull\"")
                })
            }
        };
        if let Some(challenge) = challenge {
            return plain(401, &[("www-authenticate", challenge)], vec![]);
        }
        let Some((kind, content)) = state.content.get(&path).cloned() else {
            let error = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such thing here"}]}"#;
            return plain(404, &[], error.into());
        };
        let content = match &reply {
            Some(Reply::Bytes(bytes)) => bytes.clone(),
            _ => content,
        };
        let start = range.filter(|_| state.ranges).map(|range| {
            range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse::<usize>().unwrap()
        });
        let (status, first) = start.map_or((200, 0), |start| (206, start));
        let part = content[first..].to_vec();
        let mut response = plain(status, &[("content-type", kind)], part.clone());
        if status == 206 {
            let range = format!("bytes {first}-{}/{}", content.len() - 1, content.len());
            response.headers_mut().insert(header::CONTENT_RANGE, range.parse().unwrap());
        }
        if let Some(Reply::CutAfter(bytes)) = reply {
            let length = part.len();
            let cut = Cut { bytes: Some(part[..bytes].to_vec().into()), flushed: false };
            *response.body_mut() = StreamBody::new(cut).boxed_unsync();
            response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        response
    }
}

/// Some bytes, some time to send them, and then an error.
struct Cut {
    bytes: Option<Bytes>,
    flushed: bool,
}

impl futures_core::Stream for Cut {
    type Item = std::io::Result<Frame<Bytes>>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        if let Some(bytes) = self.bytes.take() {
            return std::task::Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if !std::mem::replace(&mut self.flushed, true) {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(Some(Err(std::io::Error::other("interrupted by the test"))))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // The last handle except for those of the server's tasks.
        if Arc::strong_count(&self.state) <= 2 {
            self.stop.cancel();
        }
    }
}

fn plain(status: u16, headers: &[(&'static str, String)], body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Full::from(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}
