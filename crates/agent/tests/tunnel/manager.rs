//! The management plane's end: `/v3/connect` over TLS with the real tunnel server, and dials through it.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drover_agent::http::tls::{Trust, client_config};
use drover_tunnel::{Registry, server};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use super::tls::Authority;

/// The client key of every session.
const CLIENT: &str = "c-m-1";

#[derive(Clone)]
pub struct Manager {
    pub registry: Registry,
    pub authority: Arc<Authority>,
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The registration tokens with their parameters, in order.
    registrations: Vec<(String, Value)>,
    /// The `Authorization` headers of all attempts, in order.
    bearers: Vec<Option<String>>,
    attempts: usize,
    down: bool,
    refusal: Option<(u16, String)>,
}

impl Manager {
    pub async fn start() -> Self {
        Self::start_with(Arc::new(Authority::new())).await
    }

    /// Another one with the same CA.
    pub async fn start_with(authority: Arc<Authority>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let manager = Self {
            registry: Registry::default(),
            authority,
            address: listener.local_addr().unwrap(),
            state: Arc::default(),
        };
        let (accepting, acceptor) = (manager.clone(), manager.authority.acceptor());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if accepting.state.lock().unwrap().down {
                    continue;
                }
                let (manager, acceptor) = (accepting.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        let manager = manager.clone();
                        async move { Ok::<_, Infallible>(manager.answer(request)) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades()
                        .await;
                });
            }
        });
        manager
    }

    pub fn url(&self) -> String {
        // The path must be ignored.
        format!("https://{}/some/path", self.address)
    }

    /// Closes every tunnel and accepts no new one, until it is up again.
    pub fn set_down(&self, down: bool) {
        self.state.lock().unwrap().down = down;
        if down {
            self.registry.disconnect(CLIENT);
        }
    }

    pub fn refuse(&self, refusal: Option<(u16, &str)>) {
        self.state.lock().unwrap().refusal = refusal.map(|(code, text)| (code, text.to_owned()));
    }

    pub fn attempts(&self) -> usize {
        self.state.lock().unwrap().attempts
    }

    pub fn registrations(&self) -> Vec<(String, Value)> {
        self.state.lock().unwrap().registrations.clone()
    }

    pub fn bearers(&self) -> Vec<Option<String>> {
        self.state.lock().unwrap().bearers.clone()
    }

    pub fn is_connected(&self) -> bool {
        self.registry.is_connected(CLIENT)
    }

    pub fn disconnect(&self) {
        self.registry.disconnect(CLIENT);
    }

    fn answer(&self, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        assert_eq!(request.uri().path(), "/v3/connect");
        let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
        let (token, params) = (header("x-api-tunnel-token"), header("x-api-tunnel-params"));
        {
            let mut state = self.state.lock().unwrap();
            state.attempts += 1;
            let bearer = request.headers().get("authorization");
            state.bearers.push(bearer.map(|value| value.to_str().unwrap().to_owned()));
            if let Some((code, text)) = &state.refusal {
                let mut refused = Response::new(Full::from(text.clone()));
                *refused.status_mut() = StatusCode::from_u16(*code).unwrap();
                return refused;
            }
            let params: Value = serde_json::from_slice(&STANDARD.decode(params).unwrap()).unwrap();
            state.registrations.push((token, params["cluster"].clone()));
        }
        let (response, upgraded) = server::upgrade(&mut request).unwrap();
        let registry = self.registry.clone();
        tokio::spawn(async move { registry.serve_upgraded(CLIENT, upgraded.await.unwrap()).await });
        response.map(|()| Full::default())
    }

    /// Asks the cluster's API for the user of the registered token: with TLS and the registered CA, through the tunnel,
    /// at the registered address.
    pub async fn whoami(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let (_, params) = self.registrations().pop().ok_or("there is no registration")?;
        let text = |field: &str| params[field].as_str().unwrap().to_owned();
        let stream = self.registry.dial(CLIENT, "tcp", &text("address")).await?;
        let pem = STANDARD.decode(text("caCert"))?;
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1")?;
        let tls = tokio_rustls::TlsConnector::from(client_config(Trust::Only(&pem), None)?);
        let stream = tls.connect(name, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::get("/whoami")
            .header("host", "kubernetes")
            .header("authorization", format!("Bearer {}", text("token")))
            .body(Full::<Bytes>::default())?;
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        Ok(serde_json::from_slice(&body)?)
    }

    /// The text with which a dial fails.
    pub async fn refused_dial(&self, proto: &str, address: &str) -> String {
        let mut stream = self.registry.dial(CLIENT, proto, address).await.unwrap();
        stream.read_u8().await.unwrap_err().to_string()
    }
}
