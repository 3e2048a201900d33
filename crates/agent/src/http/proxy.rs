//! HTTP(S)_PROXY and NO_PROXY, interpreted as in Go. Every proxied connection is a CONNECT tunnel.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Url;
use crate::host::BoxIo;

pub(super) struct Proxy {
    pub(super) url: Url,
    authorization: Option<String>,
}

/// The proxy for a URL, if there is one. An invalid variable is an error: bypassing the proxy would be worse than
/// failing.
pub(super) fn pick(env: &[(String, String)], url: &Url) -> Result<Option<Proxy>, Unusable> {
    let get = |name: &str| {
        let found = |wanted: &str| {
            env.iter()
                .rev()
                .find(|(have, value)| have == wanted && !value.is_empty())
                .map(|(_, value)| value.as_str())
        };
        found(name).or_else(|| found(&name.to_ascii_lowercase()))
    };
    let Some(text) = get(if url.https { "HTTPS_PROXY" } else { "HTTP_PROXY" }) else { return Ok(None) };
    if bypassed(get("NO_PROXY").unwrap_or_default(), url) {
        return Ok(None);
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let (credential, rest) = match rest.rsplit_once('@') {
        Some((credential, rest)) => (Some(credential), rest),
        None => (None, rest),
    };
    let place = format!("{}://{rest}", scheme.to_ascii_lowercase());
    match Url::parse(&place) {
        Ok(url) => Ok(Some(Proxy { url, authorization: credential.map(basic) })),
        Err(_) => {
            Err(Unusable { place, message: "unsupported proxy: expected an http:// or https:// URL".into() })
        }
    }
}

/// A configured proxy that cannot be used, without its credential.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) place: String,
    pub(super) message: String,
}

/// The Basic credentials; user and password are percent-decoded as in a URL.
pub(crate) fn basic(credential: &str) -> String {
    let (user, password) = credential.split_once(':').unwrap_or((credential, ""));
    let plain = [&unescaped(user)[..], b":", &unescaped(password)].concat();
    format!("Basic {}", STANDARD.encode(plain))
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| byte == b'%');
        let escaped = escaped.and_then(|digits| hex::decode(digits).ok());
        match escaped {
            Some(bytes) => {
                out.extend(bytes);
                rest = &after[2..];
            }
            // Keep a percent sign that is not followed by two hex digits.
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

fn bypassed(no_proxy: &str, url: &Url) -> bool {
    let host = url.bare_host().to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).filter(|entry| !entry.is_empty()).any(
        |entry| {
            if entry == "*" {
                return true;
            }
            if let (Some(address), Some((network, bits))) = (address, entry.split_once('/')) {
                return in_network(address, network, bits);
            }
            let (name, port) = match entry.rsplit_once(':') {
                Some((name, port)) if !name.contains(':') => (name, Some(port)),
                _ => (entry.as_str(), None),
            };
            if port.is_some_and(|port| port != url.port.to_string()) {
                return false;
            }
            let suffix = name.trim_start_matches('*').trim_start_matches('.');
            host == name || host.strip_suffix(suffix).is_some_and(|head| head.ends_with('.'))
        },
    )
}

fn in_network(address: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        (IpAddr::V6(a), IpAddr::V6(n)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        _ => false,
    }
}

/// Requests a tunnel from the proxy.
pub(super) async fn connect(tcp: &mut BoxIo, proxy: &Proxy, to: &str) -> Result<(), String> {
    let authorization = proxy
        .authorization
        .as_ref()
        .map(|value| format!("Proxy-Authorization: {value}\r\n"))
        .unwrap_or_default();
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n");
    tcp.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    // Read single bytes, because the bytes after the headers belong to the tunnel.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 8 * 1024 {
            return Err("the response headers are too long".into());
        }
        head.push(tcp.read_u8().await.map_err(|error| error.to_string())?);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    match line.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(no_proxy: &str) -> Vec<(String, String)> {
        vec![("https_proxy".into(), "u:p@px:3128".into()), ("NO_PROXY".into(), no_proxy.into())]
    }

    #[test]
    fn variables_are_interpreted_as_in_go() {
        let url = |text: &str| Url::parse(text).unwrap();
        let pick = |env: &[_], url: &Url| pick(env, url).unwrap();
        let proxy = pick(&env(""), &url("https://a.example.com")).unwrap();
        assert_eq!((proxy.url.host.as_str(), proxy.url.port), ("px", 3128));
        assert_eq!(proxy.authorization.as_deref(), Some("Basic dTpw"));
        assert!(
            pick(&env(""), &url("http://a.example.com")).is_none(),
            "only the variable of the scheme is used"
        );
        for (no_proxy, host, bypassed) in [
            ("example.com", "a.example.com", true),
            (".example.com", "a.example.com", true),
            ("example.com", "badexample.com", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("a.example.com:443", "a.example.com", true),
            ("a.example.com:444", "a.example.com", false),
            ("*", "x", true),
            ("", "localhost", true),
            ("", "127.0.0.1", true),
        ] {
            assert_eq!(
                pick(&env(no_proxy), &url(&format!("https://{host}"))).is_none(),
                bypassed,
                "{no_proxy} {host}"
            );
        }
    }

    #[test]
    fn credentials_are_decoded_and_unsupported_proxies_rejected() {
        let proxy = |text: &str| {
            let env = [("HTTPS_PROXY".to_owned(), text.to_owned())];
            pick(&env, &Url::parse("https://a.example.com").unwrap())
        };
        for (text, plain) in [
            ("http://u:p%40ss%3a%2F@px", "u:p@ss:/"),
            (r"http://corp%5Cme:100%@px", r"corp\me:100%"),
            ("http://alone@px", "alone:"),
        ] {
            let found = proxy(text).unwrap().unwrap();
            assert_eq!(found.authorization, Some(format!("Basic {}", STANDARD.encode(plain))), "{text}");
        }
        let found = proxy("HTTPS://px").unwrap().unwrap();
        assert!(found.url.https && found.url.port == 443);
        for text in ["socks5://u:secret@px:1080", "ftp://px", "http://"] {
            let refused = proxy(text).err().unwrap();
            assert!(!refused.place.contains("secret"), "{refused:?}");
        }
    }
}
