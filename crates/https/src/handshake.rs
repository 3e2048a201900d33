//! From a new connection to TLS.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::gate::Gate;

/// What somebody gets who forgot the `s` of `https`.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Connection: close\r\n\r\nThis port speaks HTTPS: use https:// instead of http://.\n";
/// How much of such a request is read, so that its sender sees the answer.
const ADVICE_READ: u64 = 64 << 10;

/// Nothing was asked yet of a connection in its handshake: a stop does not wait for it.
pub(crate) async fn shake_hands(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    gate: &Gate,
    activity: &Activity,
    stop: &CancellationToken,
) -> Option<TlsStream<TcpStream>> {
    if let Err(error) = crate::socket::prepare(&stream) {
        tracing::debug!(%address, %error, "a connection has not all of its limits");
    }
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(gate.limits().handshake, tls_or_advice(stream, acceptor)) => shaken,
        () = activity.place.evicted.cancelled() => return None,
        () = stop.cancelled() => return None,
    };
    match shaken {
        Ok(Ok(tls)) => return tls,
        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
        Err(_) => {
            gate.expired();
            tracing::debug!(%address, "TLS handshake took too long");
        }
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
