//! Serves HTTPS on any number of listeners: HTTP/1.1 with upgrades and HTTP/2, optional client certificates, limits
//! for unauthenticated callers, and a stop that lets requests finish.
//!
//! It knows neither what is served nor how certificates are made: a [`rustls::ServerConfig`] and a handler come
//! in. Each request carries [`Peer`] as an extension, by which the handler says that it knows the caller.
//!
//! Start with [`serve_through`]: a new connection gets a place (`gate`) or is closed, then TLS (`handshake`), then its
//! requests are answered (`answer`) while its deadlines run (`connection`, decided in `activity`). `limits` has all
//! numbers.

mod activity;
mod answer;
mod body;
mod connection;
mod gate;
mod handshake;
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
pub use gate::{Counts, Gate};
use limits::DRAIN_LIMIT;
pub use limits::Limits;
use socket::Held;

/// A pause after an accept failed, for instance because there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of the connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificate chain, leaf first, of which the client has the key; empty without one. Whose it is and
    /// who signed it is for the handler to see, unless the [`ServerConfig`] did.
    pub certificates: Vec<CertificateDer<'static>>,
    connection: Arc<Activity>,
}

impl Peer {
    /// Says that the caller is known: the connection no longer counts against the limits of unauthenticated
    /// connections, and a request on it may take any time.
    pub fn recognise(&self) {
        self.connection.recognise();
    }
}

/// Serves on `listener` with limits of its own.
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
    serve_through(Gate::default(), listener, tls, handler, stop).await;
}

/// Accepts on `listener` until `stop`, then lets open requests finish for a few seconds. Listeners with the same gate
/// share its limits.
pub async fn serve_through<H, F, B>(
    gate: Gate,
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
                tracing::warn!(%error, "a connection could not be accepted");
                gate.make_room(Instant::now());
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let now = Instant::now();
        let Some(place) = gate.admit(address.ip(), now) else { continue };
        let held = Held(Arc::new(Activity::new(place, now)));
        let (gate, acceptor, handler, stop) = (gate.clone(), acceptor.clone(), handler.clone(), stop.clone());
        connections.spawn(connected(stream, address, held, gate, acceptor, handler, stop));
    }
    drop(listener);
    connections.close();
    let _ = tokio::time::timeout(DRAIN_LIMIT, connections.wait()).await;
}

async fn connected<H, F, B>(
    stream: TcpStream,
    address: SocketAddr,
    held: Held,
    gate: Gate,
    acceptor: TlsAcceptor,
    handler: H,
    stop: CancellationToken,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let shaken = handshake::shake_hands(stream, address, acceptor, &gate, &held.0, &stop).await;
    if let Some(tls) = shaken {
        connection::run(tls, address, held, &gate, handler, &stop).await;
    }
}
