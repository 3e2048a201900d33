//! The dialing end: opens the WebSocket on a byte stream and serves the server's dial requests.

use std::sync::Arc;

use http::{HeaderMap, Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::Error;
use crate::session::{self, Dial, Role, Session};

/// Opens a tunnel on `io`, which is already connected (and encrypted). Returns a handle and the future that runs it.
///
/// `headers` contain the credentials. If the server rejects the tunnel, the error contains its message.
pub async fn connect<S>(
    io: S,
    uri: &Uri,
    headers: HeaderMap,
    dial: Arc<dyn Dial>,
) -> Result<(Session, impl Future<Output = Error> + Send + use<S>), Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut request: Request<()> = uri.into_client_request()?;
    request.headers_mut().extend(headers);
    let handshake = tokio_tungstenite::client_async_with_config(request, io, Some(session::socket_config()));
    let socket = match tokio::time::timeout(session::HANDSHAKE_LIMIT, handshake).await {
        Err(_) => return Err(Error::Silent),
        Ok(Ok((socket, _))) => socket,
        Ok(Err(tungstenite::Error::Http(response))) => {
            let body = response.body().as_deref().unwrap_or_default();
            let body = String::from_utf8_lossy(body).trim().to_owned();
            return Err(Error::Refused { status: response.status().as_u16(), body });
        }
        Ok(Err(error)) => return Err(error.into()),
    };
    Ok(session::start(socket, Role::Client, dial))
}
