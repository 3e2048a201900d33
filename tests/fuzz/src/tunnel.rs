//! What an agent sends through its tunnel; it is untrusted.

use std::time::Duration;

use drover_tunnel::codec::{Body, Frame};
use drover_tunnel::{Registry, server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Longer than all deadlines of a session together; time is virtual.
const SESSION_TIMEOUT: Duration = Duration::from_secs(3600);

/// A frame: its payload is not larger than the message, and it round-trips.
pub fn tunnel_frame(data: &[u8]) {
    let Ok(frame) = Frame::decode(data.to_vec().into()) else { return };
    let (size, exact) = match &frame.body {
        Body::Data(bytes) => (bytes.len(), true),
        Body::Connect { proto, address } => {
            (proto.len() + address.len(), address.is_ascii() && proto.is_ascii())
        }
        Body::Sync(ids) => (ids.len() * 8, true),
        Body::Error(text) | Body::AddClient(text) | Body::RemoveClient(text) => (text.len(), text.is_ascii()),
        Body::Pause | Body::Resume | Body::Unknown(_) => (0, true),
    };
    // An invalid UTF-8 byte becomes a character of three bytes.
    assert!(size <= data.len() * if exact { 1 } else { 3 }, "{size} bytes of {}", data.len());
    let again = Frame::decode(frame.encode().into()).expect("written output can be read");
    assert!(!exact || again == frame, "{again:?} is not {frame:?}");
}

/// The bytes of a connection after its upgrade: for any bytes, the session ends soon after them and is removed.
pub fn tunnel_session(data: &[u8]) {
    let bytes = data.to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async move {
        let registry = Registry::default();
        let (here, mut there) = tokio::io::duplex(64 * 1024);
        let agent = async move {
            let _ = there.write_all(&bytes).await;
            let _ = there.shutdown().await;
            let mut sent = Vec::new();
            let _ = there.read_to_end(&mut sent).await;
            sent.len()
        };
        let served = registry.serve("c-m-1", here);
        let both = async { tokio::join!(served, agent) };
        let (_, sent) = tokio::time::timeout(SESSION_TIMEOUT, both).await.expect("the session ends");
        assert!(sent <= data.len() * 64 + 1024, "{sent} bytes were sent in response to {}", data.len());
        assert!(!registry.is_connected("c-m-1"));
    });
}

/// A tunnel request: only a WebSocket upgrade is accepted.
pub fn tunnel_upgrade(data: &[u8]) {
    let mut request = http::Request::new(());
    for line in String::from_utf8_lossy(data).lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let (Ok(name), Ok(value)) = (name.parse::<http::HeaderName>(), value.trim().parse()) else {
            continue;
        };
        request.headers_mut().append(name, value);
    }
    let asks =
        request.headers().contains_key("upgrade") && request.headers().contains_key("sec-websocket-key");
    if let Some((response, _)) = server::upgrade(&mut request) {
        assert!(asks, "{:?}", request.headers());
        assert_eq!(response.status(), 101);
    }
}
