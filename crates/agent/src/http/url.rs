use std::borrow::Cow;

/// The parts of an http or https URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is https.
    pub https: bool,
    /// Name or address; an IPv6 address keeps its brackets.
    pub host: String,
    /// The port; by default the scheme's.
    pub port: u16,
    /// Path and query; at least `/`.
    pub path: String,
}

/// Not an http or https URL.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not an http or https URL")]
pub struct UrlError(pub String);

impl Url {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let bad = || UrlError(text.to_owned());
        let uri: http::Uri = escaped(text).parse().map_err(|_| bad())?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?.to_owned();
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // A query can follow the host directly.
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { https, host, port, path })
    }

    /// The value of the Host header.
    pub fn authority(&self) -> String {
        match (self.https, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }

    /// The host without the brackets of an IPv6 address.
    pub fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Escapes characters after the host, as Go does before sending. Control characters are kept, so that the URL is
/// rejected.
fn escaped(text: &str) -> Cow<'_, str> {
    let unsafe_there = |byte: u8| !byte.is_ascii() || b" \"<>\\^`{|}".contains(&byte);
    let host = text.find("://").map_or(0, |at| at + 3);
    let path = text[host..].find(['/', '?', '#']).map_or(text.len(), |at| host + at);
    if !text[path..].bytes().any(unsafe_there) {
        return Cow::Borrowed(text);
    }
    let mut out = text[..path].to_owned();
    for byte in text[path..].bytes() {
        if unsafe_there(byte) {
            out.push_str(&format!("%{byte:02X}"));
        } else {
            out.push(char::from(byte));
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let url = Url::parse("https://[::1]:6443/readyz?verbose").unwrap();
        assert_eq!((url.bare_host(), url.port, url.path.as_str()), ("::1", 6443, "/readyz?verbose"));
        let url = Url::parse("http://a.b").unwrap();
        assert_eq!((url.authority().as_str(), url.port, url.path.as_str()), ("a.b", 80, "/"));
        let url = Url::parse("http://127.0.0.1:19600?x=1#f").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("127.0.0.1", 19600, "/?x=1"));
        assert_eq!(Url::parse("http://h#f").unwrap().path, "/");
        let url = Url::parse("http://h/a b/\u{fc}%20{c}?d e").unwrap();
        assert_eq!(url.path, "/a%20b/%C3%BC%20%7Bc%7D?d%20e");
        for bad in ["http://a b/", "http://h/\n", "http://h/\u{7f}", " http://h/"] {
            assert!(Url::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Url::parse("ftp://x").is_err());
        assert!(Url::parse("nonsense").is_err());
        assert!(Url::parse("http://").is_err());
    }
}
