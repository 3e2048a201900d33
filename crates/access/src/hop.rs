//! Shared by all proxies: removing hop-by-hop headers, and joining upgraded connections.

use http::{HeaderMap, HeaderName, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// Whether a request is an upgrade, as for `exec` and port forwarding.
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|v| v.to_str().ok());
    headers.contains_key(header::UPGRADE)
        && connection.flat_map(|v| v.split(',')).any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}

/// Removes hop-by-hop headers, except those of a requested upgrade.
pub fn strip(headers: &mut HeaderMap, upgrade: bool) {
    const HOP: [HeaderName; 8] = [
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::COOKIE,
    ];
    for name in &HOP {
        headers.remove(name);
    }
    if !upgrade {
        headers.remove(header::CONNECTION);
        headers.remove(header::UPGRADE);
    }
}

/// Copies between two upgraded connections until both have ended.
pub async fn join(caller: OnUpgrade, callee: OnUpgrade) {
    let Ok((caller, callee)) = futures::future::try_join(caller, callee).await else { return };
    let (mut caller, mut callee) = (TokioIo::new(caller), TokioIo::new(callee));
    // When one side ends, the other is ended. Errors are normal ends of such streams.
    let _ = tokio::io::copy_bidirectional(&mut caller, &mut callee).await;
}
