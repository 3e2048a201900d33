//! Where an image can be had.

use super::registries::{Auth, Tls};
use crate::http::Url;

/// One place to ask for an image, and how.
#[derive(Clone)]
pub struct Endpoint {
    /// Scheme, host and port; the path is what stands before the repository, usually `/v2`.
    pub url: Url,
    /// The repository, rewritten if the mirror wants that.
    pub repository: String,
    /// The registry that a mirror stands in for.
    pub ns: Option<String>,
    /// Who says so.
    pub origin: Origin,
    /// Credentials, if any are configured.
    pub auth: Option<Auth>,
    /// Whom to believe to be the registry.
    pub tls: Tls,
}

/// Why an endpoint is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// registries.yaml names it as a mirror.
    Mirror,
    /// The management plane serves its own images.
    Manager,
    /// The image's own name.
    Name,
}

impl Endpoint {
    /// An endpoint as people write it. Without a scheme it is https, except on this machine at another port than 443.
    pub(super) fn url(text: &str) -> Option<Url> {
        let with_scheme = if text.contains("://") {
            text.to_owned()
        } else {
            let host = text.split('/').next().unwrap_or_default();
            let (name, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
                _ => (host, None),
            };
            let address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            let here = name == "localhost" || address.is_ok_and(|address| address.is_loopback());
            let plain = here && port.is_some_and(|port| port != "443");
            format!("{}://{text}", if plain { "http" } else { "https" })
        };
        let mut url = Url::parse(&with_scheme).ok()?;
        let path = url.path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        url.path = if path.is_empty() { "/v2".to_owned() } else { path.to_owned() };
        Some(url)
    }

    /// Path and query of something below the repository.
    pub(super) fn path(&self, rest: &str) -> String {
        let ns = self.ns.as_ref().map(|ns| format!("?ns={}", escape(ns))).unwrap_or_default();
        format!("{}/{}/{rest}{ns}", self.url.path, self.repository)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.url.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}/{}", self.url.authority(), self.url.path, self.repository)
    }
}

/// For a value in a query.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
