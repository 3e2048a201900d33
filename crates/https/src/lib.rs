//! Serves HTTPS on any number of listeners: HTTP/1.1 with upgrades and HTTP/2, optional client certificates, limits
//! for unauthenticated callers, and a stop that lets requests finish.
//!
//! It does not depend on what is served nor on how certificates are made: the caller passes a [`rustls::ServerConfig`]
//! and a handler. Each request carries a [`Peer`] extension, with which the handler marks the caller as authenticated.
//!
//! Start with [`serve_through`]: a new connection is admitted (`limiter`) or closed, then TLS follows (`handshake`),
//! then its requests are answered (`answer`) while its deadlines run (`connection`, decided in `activity`). `limits`
//! has all numbers.

mod activity;
mod answer;
mod body;
mod connection;
mod handshake;
mod limiter;
mod limits;
mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Bytes;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::BoxError;

use activity::Activity;
pub use body::Incoming;
pub use limiter::{ConnectionLimiter, Counts};
use limits::DRAIN_LIMIT;
pub use limits::Limits;
use socket::SlotGuard;

/// Pause after a failed accept, for instance when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The other end of the connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificate chain, leaf first; empty without one. The client has proven that it has the key. The
    /// handler must check the subject and the signer, unless the [`ServerConfig`] did.
    pub certificates: Vec<CertificateDer<'static>>,
    connection: Arc<Activity>,
}

impl Peer {
    /// Marks the caller as authenticated: the connection no longer counts against the limits of unauthenticated
    /// connections, and its requests may take any time.
    pub fn mark_authenticated(&self) {
        self.connection.mark_authenticated();
    }
}

/// Serves on `listener` with its own limits.
pub async fn serve<H, F, B>(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    serve_through(ConnectionLimiter::default(), listener, tls, handler, stop).await;
}

/// Accepts connections on `listener` until `stop`, then lets open requests finish for a few seconds. Listeners with the
/// same limiter share its limits.
pub async fn serve_through<H, F, B>(
    limiter: ConnectionLimiter,
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                limiter.make_room(Instant::now());
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let now = Instant::now();
        let Some(slot) = limiter.admit(address.ip(), now) else { continue };
        let guard = SlotGuard(Arc::new(Activity::new(slot, now)));
        let (limiter, acceptor, handler, stop) =
            (limiter.clone(), acceptor.clone(), handler.clone(), stop.clone());
        connections.spawn(connected(stream, address, guard, limiter, acceptor, handler, stop));
    }
    drop(listener);
    connections.close();
    let _ = tokio::time::timeout(DRAIN_LIMIT, connections.wait()).await;
}

async fn connected<H, F, B>(
    stream: TcpStream,
    address: SocketAddr,
    guard: SlotGuard,
    limiter: ConnectionLimiter,
    acceptor: TlsAcceptor,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let accepted = handshake::accept_tls(stream, address, acceptor, &limiter, &guard.0, &stop).await;
    if let Some(tls) = accepted {
        connection::run(tls, address, guard, &limiter, handler, &stop).await;
    }
}
