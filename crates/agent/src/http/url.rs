/// An http or https URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// https?
    pub https: bool,
    /// Name or address; an IPv6 address keeps its brackets.
    pub host: String,
    /// Port, filled in from the scheme.
    pub port: u16,
    /// Path and query; at least `/`.
    pub path: String,
}

/// Not such a URL.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not an http or https URL")]
pub struct UrlError(pub String);

impl Url {
    /// Takes the text apart.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let bad = || UrlError(text.to_owned());
        let uri: http::Uri = text.parse().map_err(|_| bad())?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?.to_owned();
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self { https, host, port, path: if path.is_empty() { "/".into() } else { path.into() } })
    }

    /// What goes into the Host header.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let url = Url::parse("https://[::1]:6443/readyz?verbose").unwrap();
        assert_eq!((url.bare_host(), url.port, url.path.as_str()), ("::1", 6443, "/readyz?verbose"));
        let url = Url::parse("http://a.b").unwrap();
        assert_eq!((url.authority().as_str(), url.port, url.path.as_str()), ("a.b", 80, "/"));
        assert!(Url::parse("ftp://x").is_err());
        assert!(Url::parse("nonsense").is_err());
        assert!(Url::parse("http://").is_err());
    }
}
