//! The limits of connections, most of them for unauthenticated callers.

use std::time::Duration;

/// HTTP/2 streams per connection: what Go's server and kube-apiserver allow.
pub(crate) const STREAMS: u32 = 250;
/// Responses to unauthenticated callers that may be sent at once on one connection. At most this many times
/// [`SEND_BUFFER`] is buffered for such a connection.
pub(crate) const ANONYMOUS_ANSWERS: usize = 8;
/// Bytes of a response that are buffered for a slow reader, per HTTP/2 stream.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// Bytes of a request that the peer may send before the handler reads them, per HTTP/2 stream and per connection.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;
pub(crate) const FRAME: u32 = 16 << 10;
/// The size of all headers of a request. Registration and tunnels send certificates and labels as headers.
pub(crate) const HEADER_BYTES: u32 = 64 << 10;
/// The number of headers of an HTTP/1.1 request; a request with more is answered with 431.
pub(crate) const HEADERS: usize = 128;
/// Streams that a peer may open and reset before the server handles them; more end the connection (rapid reset).
pub(crate) const PENDING_RESETS: usize = 20;
/// Streams that the server may have to reset because of the peer's errors; more end the connection.
pub(crate) const ERROR_RESETS: usize = 128;
/// Requests that an unauthenticated caller may cancel before they are answered; more end the connection.
pub(crate) const CANCELLED_REQUESTS: usize = 128;

/// TCP keep-alive probes start after this long without a byte. They cover HTTP/1.1, tunnels and other upgraded
/// connections.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(60);
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(15);
/// A peer that acknowledges none of the data sent to it for this long, at the level of TCP, is dead.
pub(crate) const UNREAD_LIMIT: Duration = Duration::from_secs(120);
/// When the server stops, requests that have not finished after this long are cut.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a peer may take to close a connection after the idle deadline.
pub(crate) const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// How much is read from a peer after the last response, so that a reset does not discard the response.
pub(crate) const LINGER_BYTES: u64 = 8 << 20;
pub(crate) const LINGER_LIMIT: Duration = Duration::from_secs(2);

/// Deadlines of connections, and how many unauthenticated ones may be open.
///
/// A connection with a request in flight is not idle, however long the request takes. A connection whose caller is
/// authenticated ([`crate::Peer::mark_authenticated`]) is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// From the handshake to the first request, and from the first byte of an HTTP/1.1 request to the end of its
    /// headers.
    pub headers: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// An unauthenticated connection with a request in flight must transfer [`Limits::progress`] bytes in every period
    /// of this length.
    pub stall: Duration,
    pub progress: u64,
    /// HTTP/2 sends a PING after this long without a byte, and closes the connection if the peer does not answer within
    /// `pong`.
    pub ping: Duration,
    pub pong: Duration,
    /// Unauthenticated connections of one address. An IPv6 network of 64 bits counts as one address.
    pub per_address: usize,
    /// Unauthenticated connections of all addresses.
    pub total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(20),
            idle: Duration::from_secs(180),
            stall: Duration::from_secs(60),
            progress: 8 << 10,
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(20),
            per_address: 256,
            total: 1024,
        }
    }
}
