//! A tunnel server on its own port, an echo service, and a dialer for tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use drover_tunnel::session::{Dial, Dialing, Io};
use drover_tunnel::{Registry, server};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Serves `/v3/connect`; the client key is the header `X-Client`, the token must be `secret`.
pub async fn tunnel_server(registry: Registry) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let registry = registry.clone();
            let service = service_fn(move |request| answer(request, registry.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            tokio::spawn(connection);
        }
    });
    address
}

async fn answer(
    mut request: Request<Incoming>,
    registry: Registry,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    if header("x-api-tunnel-token").as_deref() != Some("secret") {
        let mut refused = Response::new(Full::from("failed authentication"));
        *refused.status_mut() = StatusCode::UNAUTHORIZED;
        return Ok(refused);
    }
    let client = header("x-client").unwrap();
    let (response, upgraded) = server::upgrade(&mut request).unwrap();
    tokio::spawn(async move { registry.serve_upgraded(&client, upgraded.await.unwrap()).await });
    Ok(response.map(|()| Full::default()))
}

/// Echoes everything that it receives.
pub async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

/// Dials TCP on loopback, like the agent.
pub struct Loopback;

impl Dial for Loopback {
    fn dial(&self, proto: String, address: String) -> Dialing {
        Box::pin(async move {
            if proto != "tcp" {
                return Err(io::Error::other(format!("{proto} is not allowed")));
            }
            Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Io>)
        })
    }
}

pub fn loopback() -> Arc<dyn Dial> {
    Arc::new(Loopback)
}
