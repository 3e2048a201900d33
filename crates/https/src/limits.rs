//! The limits of connections, most of them for callers who are not known.

use std::time::Duration;

/// HTTP/2 streams per connection: what Go's server and kube-apiserver allow.
pub(crate) const STREAMS: u32 = 250;
/// How many answers to callers who are not known may be on their way at once on one connection. What is buffered for
/// such a connection is at most this many times [`SEND_BUFFER`].
pub(crate) const ANONYMOUS_ANSWERS: usize = 8;
/// Bytes of an answer that wait in memory for a peer that reads slowly, per HTTP/2 stream.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// Bytes of a request that the peer may send before the handler reads them, per HTTP/2 stream and per connection.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;
pub(crate) const FRAME: u32 = 16 << 10;
/// All headers of a request together. Registration and tunnels send certificates and labels as headers.
pub(crate) const HEADER_BYTES: u32 = 64 << 10;
/// The number of headers of an HTTP/1.1 request; more are answered with 431.
pub(crate) const HEADERS: usize = 128;
/// Streams that a peer opened and reset before the server looked at them; more end the connection (rapid reset).
pub(crate) const PENDING_RESETS: usize = 20;
/// Streams that the server had to reset because of the peer's errors; more end the connection.
pub(crate) const ERROR_RESETS: usize = 128;
/// Requests that a caller who is not known withdrew before they were answered; more end the connection.
pub(crate) const WITHDRAWN: usize = 128;

/// A probe after this long without a byte, below HTTP: for HTTP/1.1, tunnels and everything else that was upgraded.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(60);
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(15);
/// A peer that takes nothing of what is sent for this long, at the level of TCP, is gone.
pub(crate) const UNREAD_LIMIT: Duration = Duration::from_secs(120);
/// Requests that have not finished by then are cut when the server stops.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a peer may take to close a connection that was idle for too long.
pub(crate) const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// How much of what a peer still sends is read after the last answer, so that the answer is not lost by a reset.
pub(crate) const LINGER_BYTES: u64 = 8 << 20;
pub(crate) const LINGER_LIMIT: Duration = Duration::from_secs(2);

/// Deadlines of connections, and how many of them may be open on which no caller is known.
///
/// A connection with a request in flight is not idle, however long that takes; a connection whose caller is known
/// ([`crate::Peer::recognise`]) is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// From the handshake to the first request, and from the first byte of an HTTP/1.1 request to the end of its headers.
    pub headers: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// A connection whose caller is not known, with a request in flight, has to move [`Limits::progress`] bytes in any
    /// period of this length.
    pub stall: Duration,
    pub progress: u64,
    /// HTTP/2 sends a PING after this long without a byte, and closes the connection of any peer that does not answer in
    /// time: it is dead.
    pub ping: Duration,
    pub pong: Duration,
    /// Connections of one address whose callers are not known. A network of 64 bits is one address in IPv6.
    pub per_address: usize,
    /// The same of all addresses.
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
