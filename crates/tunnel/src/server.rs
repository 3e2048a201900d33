//! The accepting end: the WebSocket upgrade, and the registry of connected clients.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role as SocketRole;

use crate::session::{self, RefuseAll, Role, Session};
use crate::{Error, TunnelStream};

/// Sessions by client key. Clones share it.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    sessions: Mutex<Sessions>,
    changes: broadcast::Sender<String>,
}

#[derive(Default)]
struct Sessions {
    next: u64,
    by_client: HashMap<String, Vec<(u64, Session)>>,
    /// Bytes received and sent in the sessions that ended.
    ended: (u64, u64),
}

/// The total usage of all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of registered sessions.
    pub sessions: usize,
    /// The number of open connections in them.
    pub connections: usize,
    /// Bytes of frames since the start, including ended sessions.
    pub received: u64,
    pub sent: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self { inner: Arc::new(Inner { sessions: Mutex::default(), changes: broadcast::channel(256).0 }) }
    }
}

impl Registry {
    /// Runs a session of `client` on an upgraded connection until it ends.
    pub async fn serve_upgraded(&self, client: &str, upgraded: hyper::upgrade::Upgraded) -> Error {
        self.serve(client, TokioIo::new(upgraded)).await
    }

    /// Runs a session of `client` on any byte stream after its WebSocket handshake.
    pub async fn serve<S>(&self, client: &str, io: S) -> Error
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (session, run) = open(io).await;
        let entry = self.enter(client, session);
        let error = run.await;
        drop(entry);
        error
    }

    /// Registers a running session as the newest one of `client` until the entry is dropped. Before, it is not dialed.
    pub fn enter(&self, client: &str, session: Session) -> Entry {
        Entry::new(self, client, session)
    }

    /// Opens a connection to `address` through the newest session of `client` that is alive; of two sessions, the older
    /// one may be half dead.
    pub async fn dial(&self, client: &str, proto: &str, address: &str) -> Result<TunnelStream, Error> {
        let session = self.newest(client).ok_or_else(|| Error::NoSession(client.to_owned()))?;
        session.dial(proto, address).await
    }

    /// The current and total usage.
    pub fn usage(&self) -> Usage {
        let sessions = self.inner.sessions.lock();
        let (received, sent) = sessions.ended;
        let mut usage = Usage { received, sent, ..Usage::default() };
        for (_, session) in sessions.by_client.values().flatten() {
            let (received, sent) = session.traffic();
            usage.sessions += 1;
            usage.connections += session.connections();
            usage.received += received;
            usage.sent += sent;
        }
        usage
    }

    pub fn is_connected(&self, client: &str) -> bool {
        self.newest(client).is_some()
    }

    /// Reports the client keys whose sessions start or end. A receiver that lags must check all known clients.
    pub fn changes(&self) -> broadcast::Receiver<String> {
        self.inner.changes.subscribe()
    }

    /// Ends all sessions of a client, for example because its cluster was deleted.
    pub fn disconnect(&self, client: &str) {
        let sessions = self.inner.sessions.lock();
        sessions.by_client.get(client).into_iter().flatten().for_each(|(_, session)| session.end());
    }

    fn newest(&self, client: &str) -> Option<Session> {
        let sessions = self.inner.sessions.lock();
        let alive = |(_, session): &&(u64, Session)| !session.is_ended();
        sessions.by_client.get(client)?.iter().rev().find(alive).map(|(_, session)| session.clone())
    }
}

/// Starts a session on any byte stream after its WebSocket handshake. Returns a handle and the future that runs it. It
/// is not in a [`Registry`] yet, so that its peer can be checked first.
pub async fn open<S>(io: S) -> (Session, impl Future<Output = Error> + Send + use<S>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let socket =
        WebSocketStream::from_raw_socket(io, SocketRole::Server, Some(session::socket_config())).await;
    session::start(socket, Role::Server, Arc::new(RefuseAll))
}

/// The same for an upgraded connection.
pub async fn open_upgraded(
    upgraded: hyper::upgrade::Upgraded,
) -> (Session, impl Future<Output = Error> + Send) {
    open(TokioIo::new(upgraded)).await
}

/// The entry of a session in the registry. Dropping it ends the session.
pub struct Entry {
    registry: Registry,
    client: String,
    number: u64,
    session: Session,
}

impl Entry {
    fn new(registry: &Registry, client: &str, session: Session) -> Self {
        let number = {
            let mut sessions = registry.inner.sessions.lock();
            sessions.next += 1;
            let number = sessions.next;
            sessions.by_client.entry(client.to_owned()).or_default().push((number, session.clone()));
            number
        };
        // Fails only if there are no receivers, which is fine.
        let _ = registry.inner.changes.send(client.to_owned());
        Self { registry: registry.clone(), client: client.to_owned(), number, session }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.session.end();
        {
            let mut sessions = self.registry.inner.sessions.lock();
            if let Some(list) = sessions.by_client.get_mut(&self.client) {
                list.retain(|(number, _)| *number != self.number);
                if list.is_empty() {
                    sessions.by_client.remove(&self.client);
                }
                let (received, sent) = self.session.traffic();
                sessions.ended.0 += received;
                sessions.ended.1 += sent;
            }
        }
        let _ = self.registry.inner.changes.send(self.client.clone());
    }
}

/// Whether a request asks for a WebSocket.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(header::SEC_WEBSOCKET_KEY) && names_token(headers, header::UPGRADE, "websocket")
}

/// The response to a WebSocket upgrade request, and the byte stream that follows it.
///
/// `None` if the request is not an upgrade; then the caller must respond with 400.
pub fn upgrade<B>(request: &mut Request<B>) -> Option<(Response<()>, hyper::upgrade::OnUpgrade)> {
    if !is_upgrade(request.headers()) {
        return None;
    }
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY)?;
    let accept = derive_accept_key(key.as_bytes());
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, http::HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept.parse().ok()?);
    Some((response, hyper::upgrade::on(request)))
}

fn names_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    let values = headers.get_all(name);
    values
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|t| t.trim().eq_ignore_ascii_case(token))
}
