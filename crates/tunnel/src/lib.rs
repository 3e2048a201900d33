//! The reverse tunnel, wire-compatible with rancher/remotedialer.
//!
//! A client behind a firewall opens one WebSocket to the server. The server can then open any number of connections
//! *through* it, to addresses that the client can reach and allows.
//!
//! * [`codec`]: the frames, pure.
//! * [`session`]: one WebSocket and the connections inside it; both ends use it.
//! * `server` (a feature, on by default): the upgrade and the registry of sessions by client key.
//! * [`client`]: the dialing end of the WebSocket.
//!
//! This crate must not know Kubernetes, tokens or TLS: its callers authenticate and encrypt the byte stream. Start
//! reading at [`session`].

pub mod client;
pub mod codec;
#[cfg(feature = "server")]
pub mod server;
pub mod session;
mod stream;

#[cfg(feature = "server")]
pub use server::Registry;
pub use session::{Dial, Session};
pub use stream::TunnelStream;

/// Why a session or a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the WebSocket failed")]
    WebSocket(#[source] Box<tokio_tungstenite::tungstenite::Error>),
    #[error("invalid frame")]
    Frame(#[from] codec::FrameError),
    #[error("the peer sent a text message; only binary messages are allowed")]
    TextMessage,
    #[error("timed out: no message from the peer for {} s", session::READ_DEADLINE.as_secs())]
    Silent,
    #[error("the peer closed the tunnel")]
    Closed,
    /// The text is part of the protocol, because callers of the original match it.
    #[error("failed to find Session for client {0}")]
    NoSession(String),
    #[error("the server rejected the tunnel with {status}: {body}")]
    Refused { status: u16, body: String },
}

impl From<tokio_tungstenite::tungstenite::Error> for Error {
    fn from(error: tokio_tungstenite::tungstenite::Error) -> Self {
        Self::WebSocket(Box::new(error))
    }
}
