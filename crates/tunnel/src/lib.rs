//! The reverse tunnel, wire-compatible with rancher/remotedialer.
//!
//! A client behind any firewall opens one WebSocket to the server; from then on the server can open any number
//! of connections *through* it to addresses that the client can reach and is willing to dial.
//!
//! * [`codec`]: the frames, pure.
//! * [`session`]: one WebSocket and the connections inside it; both ends use it.
//! * `server` (a feature, on by default): the upgrade and the registry of sessions by client key.
//! * [`client`]: the dialing end of the WebSocket.
//!
//! This crate knows nothing of Kubernetes, of tokens or of TLS: whoever accepts or opens the byte stream has
//! dealt with those. Start reading at [`session`].

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

/// What ends a session or a connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the WebSocket failed")]
    WebSocket(#[source] Box<tokio_tungstenite::tungstenite::Error>),
    #[error("a frame could not be read")]
    Frame(#[from] codec::FrameError),
    #[error("the peer sent a text message; only binary ones are legal")]
    TextMessage,
    #[error("nothing was heard from the peer for {} s", session::READ_DEADLINE.as_secs())]
    Silent,
    #[error("the peer closed the tunnel")]
    Closed,
    /// The text is part of the protocol: callers of the original match it.
    #[error("failed to find Session for client {0}")]
    NoSession(String),
    #[error("the server refused the tunnel with {status}: {body}")]
    Refused { status: u16, body: String },
}

impl From<tokio_tungstenite::tungstenite::Error> for Error {
    fn from(error: tokio_tungstenite::tungstenite::Error) -> Self {
        Self::WebSocket(Box::new(error))
    }
}
