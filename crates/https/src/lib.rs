//! Serves HTTPS on any number of listeners: HTTP/1.1 with upgrades and HTTP/2, optional client certificates, and
//! a stop that lets requests finish.
//!
//! It knows neither what is served nor how certificates are made: a [`rustls::ServerConfig`] and a handler come
//! in. Each request carries [`Peer`] as an extension.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, header};
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// Requests that have not finished by then are cut.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// What somebody gets who forgot the `s` of `https`.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Connection: close\r\n\r\nThis port speaks HTTPS: use https:// instead of http://.\n";
/// How much of such a request is read, so that its sender sees the answer.
const ADVICE_READ: u64 = 64 << 10;
/// A pause after an accept failed, for instance because there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of the connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificate chain as TLS verified it, leaf first; empty without one.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// Accepts on `listener` until `stop`, then lets open requests finish for a few seconds.
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
    let acceptor = TlsAcceptor::from(tls);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                let (watcher, stop) = (graceful.watcher(), stop.clone());
                tokio::spawn(async move {
                    let Some(tls) = shake_hands(stream, address, acceptor, &stop).await else { return };
                    tokio::select! {
                        () = connection(tls, address, handler, watcher) => {}
                        // Watches and tunnels never end by themselves.
                        () = async { stop.cancelled().await; tokio::time::sleep(DRAIN_LIMIT).await } => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN_LIMIT, graceful.shutdown()).await;
}

/// Nothing was asked yet of a connection in its handshake: a stop does not wait for it.
async fn shake_hands(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    stop: &CancellationToken,
) -> Option<TlsStream<TcpStream>> {
    let _ = stream.set_nodelay(true);
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(HANDSHAKE_LIMIT, tls_or_advice(stream, acceptor)) => shaken,
        () = stop.cancelled() => return None,
    };
    match shaken {
        Ok(Ok(tls)) => return tls,
        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
    }
    None
}

/// The name of an HTTP method begins with a letter, TLS with the number of its first record.
async fn tls_or_advice(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
) -> std::io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if !first[0].is_ascii_uppercase() {
        return acceptor.accept(stream).await.map(Some);
    }
    stream.write_all(PLAIN_HTTP).await?;
    // To close while bytes are unread would reset the connection, and the advice with it.
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(ADVICE_READ), &mut tokio::io::sink()).await?;
    Ok(None)
}

/// The answer to a HEAD: as to a GET, without the body. HTTP/2 has nobody else who leaves it out.
fn head<B: http_body::Body<Data = Bytes>>(answer: Response<B>) -> Response<Either<Empty<Bytes>, B>> {
    let length = answer.body().size_hint().exact();
    let mut answer = answer.map(|_| Either::Left(Empty::new()));
    if let Some(length) = length.filter(|length| *length > 0) {
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    answer
}

async fn connection<H, F, B>(tls: TlsStream<TcpStream>, address: SocketAddr, handler: H, watcher: Watcher)
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Peer { address, certificates };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let only_head = request.method() == Method::HEAD;
        let answer = handler(request);
        async move {
            Ok::<_, Infallible>(if only_head { head(answer.await) } else { answer.await.map(Either::Right) })
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(1000);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tls), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%address, %error, "connection ended");
    }
}
