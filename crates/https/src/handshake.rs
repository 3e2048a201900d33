//! From a new connection to TLS.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::limiter::ConnectionLimiter;

/// The answer to a plain HTTP request.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Connection: close\r\n\r\nThis port speaks HTTPS: use https:// instead of http://.\n";
/// How much of such a request is read, so that its sender receives the answer.
const PLAIN_HTTP_READ: u64 = 64 << 10;

/// Performs the TLS handshake. A stop does not wait for it, because no request was received yet.
pub(crate) async fn accept_tls(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    limiter: &ConnectionLimiter,
    activity: &Activity,
    stop: &CancellationToken,
) -> Option<TlsStream<TcpStream>> {
    if let Err(error) = crate::socket::prepare(&stream) {
        tracing::debug!(%address, %error, "failed to set socket options");
    }
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(limiter.limits().handshake, tls_or_plain_http_answer(stream, acceptor)) => accepted,
        () = activity.slot.evicted.cancelled() => return None,
        () = stop.cancelled() => return None,
    };
    match accepted {
        Ok(Ok(tls)) => return tls,
        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
        Err(_) => {
            limiter.expired();
            tracing::debug!(%address, "TLS handshake took too long");
        }
    }
    None
}

/// Tells TLS from plain HTTP by the first byte: the name of an HTTP method begins with a letter, TLS with a record
/// type.
async fn tls_or_plain_http_answer(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
) -> std::io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if !first[0].is_ascii_uppercase() {
        return acceptor.accept(stream).await.map(Some);
    }
    stream.write_all(PLAIN_HTTP).await?;
    // Closing with unread bytes would reset the connection and discard the answer.
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(PLAIN_HTTP_READ), &mut tokio::io::sink()).await?;
    Ok(None)
}
