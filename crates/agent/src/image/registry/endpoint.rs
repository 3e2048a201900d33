//! The places to pull an image from.

use super::registries::{Auth, Tls};
use crate::http::Url;

/// One place to pull an image from.
#[derive(Clone)]
pub struct Endpoint {
    /// Scheme, host and port; the path before the repository, usually `/v2`.
    pub url: Url,
    /// The repository, after the mirror's rewrite rules.
    pub repository: String,
    /// The registry that a mirror replaces, sent as `ns`.
    pub ns: Option<String>,
    /// Why this endpoint is used.
    pub origin: Origin,
    /// The configured credentials.
    pub auth: Option<Auth>,
    /// The configured TLS options.
    pub tls: Tls,
}

/// Why an endpoint is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A mirror in registries.yaml.
    Mirror,
    /// The management plane, which serves its own images.
    Manager,
    /// The registry in the image's name.
    Name,
}

impl Endpoint {
    /// Parses an endpoint. Without a scheme it uses https, except for this host with a port other than 443.
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

    /// The path and query of a resource in the repository.
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

/// Percent-encodes a value of a query.
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
