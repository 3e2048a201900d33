//! Where the tunnel connects, and what it sends about the cluster. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, Uri};
use serde_json::json;

use super::secrets::Credentials;
use crate::{
    http::{Url, UrlError},
    kubeconfig::Access,
    redact::Redactor,
};

/// Everything that is needed to open a tunnel. A new value requires a new tunnel.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The management plane and the registration token.
    pub(super) credentials: Credentials,
    /// `host:port` of the cluster's API, as this node reaches it.
    pub(super) address: String,
    /// The token of the account `cattle-system/cattle`.
    pub(super) account_token: String,
    /// The CA of the API, as PEM.
    pub(super) ca: Vec<u8>,
}

/// A server that accepts the tunnel.
pub(super) struct Server {
    /// Its URL.
    pub(super) url: Url,
    /// The name in its certificate, if it differs from the URL.
    pub(super) server_name: Option<String>,
    /// The machine's credential, if it belongs to this server.
    pub(super) token: Option<String>,
}

impl Server {
    /// The URL of the WebSocket. The path of the server's URL is dropped, as in the original.
    pub(super) fn uri(&self) -> Result<Uri, http::Error> {
        Ok(format!("wss://{}/v3/connect", self.url.authority()).parse::<Uri>()?)
    }
}

/// The address and CA of the cluster's API in the kubeconfig.
pub(super) fn endpoint(access: &Access) -> Result<(String, Vec<u8>), EndpointError> {
    let url = Url::parse(&access.server)?;
    let ca = access.ca.clone().ok_or(EndpointError::NoCa)?;
    Ok((format!("{}:{}", url.host, url.port), ca))
}

/// Why a kubeconfig is not sufficient to register.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndpointError {
    /// Its server is invalid.
    #[error("kubeconfig: {0}")]
    Url(#[from] UrlError),
    /// Without a CA, the management plane could not verify the API.
    #[error("kubeconfig: certificate-authority-data is missing")]
    NoCa,
}

impl Target {
    /// The original's headers, and the machine's credential for the servers that may see it.
    pub(super) fn headers(&self, machine_token: Option<&str>) -> Result<HeaderMap, http::Error> {
        let mut headers = HeaderMap::new();
        let original =
            [("x-api-tunnel-token", self.credentials.token.clone()), ("x-api-tunnel-params", self.params())];
        let own = machine_token.map(|token| ("authorization", format!("Bearer {token}")));
        for (name, value) in original.into_iter().chain(own) {
            let mut value = HeaderValue::from_str(&value)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// The servers to try, in order, with the credential for each.
    ///
    /// The machine's credential is sent only to the server that issued it, because a Secret of the downstream cluster
    /// must not be able to redirect it. That server is tried first: after a change of its URL, the Secret may contain
    /// another address of the same server, where the machine's credential would not be sent.
    pub(super) fn servers(&self, access: &Access) -> Result<Vec<Server>, UrlError> {
        let asked = &self.credentials.url;
        let own = Url::parse(&access.server)?;
        let Some(token) = access.token.clone().filter(|_| own.https) else {
            return Ok(vec![Server { url: asked.clone(), server_name: None, token: None }]);
        };
        let same = own.host.eq_ignore_ascii_case(&asked.host) && own.port == asked.port;
        let first = Server { url: own, server_name: access.tls_server_name.clone(), token: Some(token) };
        let second = Server { url: asked.clone(), server_name: None, token: None };
        Ok(if same { vec![first] } else { vec![first, second] })
    }

    fn params(&self) -> String {
        let cluster = json!({
            "address": self.address,
            "token": self.account_token,
            "caCert": STANDARD.encode(&self.ca),
        });
        STANDARD.encode(json!({ "cluster": cluster }).to_string())
    }

    /// Removes the secrets from messages of others. The machine's credential is added by the caller.
    pub(super) fn redactor(&self) -> Redactor {
        let mut redactor = Redactor::default();
        for secret in [&self.credentials.token, &self.account_token, &self.params()] {
            redactor.add(secret);
        }
        redactor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            credentials: Credentials {
                url: Url::parse("https://m.example:8443/some/path").unwrap(),
                token: "registration".into(),
            },
            address: "[fd00::1]:6443".into(),
            account_token: "jwt-of-cattle".into(),
            ca: b"-----BEGIN CERTIFICATE-----".to_vec(),
        }
    }

    #[test]
    fn the_headers_equal_those_of_the_original() {
        let headers = target().headers(None).unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-api-tunnel-token"], "registration");
        let params = STANDARD.decode(headers["x-api-tunnel-params"].as_bytes()).unwrap();
        let params: serde_json::Value = serde_json::from_slice(&params).unwrap();
        assert_eq!(
            params,
            json!({"cluster": {
                "address": "[fd00::1]:6443", "token": "jwt-of-cattle",
                "caCert": STANDARD.encode("-----BEGIN CERTIFICATE-----"),
            }})
        );
        assert!(headers.values().all(HeaderValue::is_sensitive));
        let shown = target().redactor().clean("registration, jwt-of-cattle");
        assert_eq!(shown, "[redacted], [redacted]");
    }

    fn access(server: &str, token: Option<&str>) -> Access {
        Access {
            server: server.into(),
            tls_server_name: None,
            ca: None,
            insecure: false,
            token: token.map(str::to_owned),
            client_cert: None,
        }
    }

    #[test]
    fn the_machines_credential_is_sent_only_to_the_server_that_issued_it() {
        let servers = |server: &str, token: Option<&str>| -> Vec<(String, Option<String>)> {
            let servers = target().servers(&access(server, token)).unwrap();
            servers.into_iter().map(|server| (server.uri().unwrap().to_string(), server.token)).collect()
        };
        let here = "wss://m.example:8443/v3/connect".to_owned();
        let own = Some("own".to_owned());
        assert_eq!(
            servers("https://M.example:8443/prefix", Some("own")),
            [("wss://M.example:8443/v3/connect".to_owned(), own.clone())]
        );
        for (server, there) in [
            ("https://m.example", "wss://m.example/v3/connect"),
            ("https://other.example:8443", "wss://other.example:8443/v3/connect"),
        ] {
            assert_eq!(servers(server, Some("own")), [(there.to_owned(), own.clone()), (here.clone(), None)]);
        }
        // Without a credential, or without TLS, where others could read it.
        for (server, token) in [("https://m.example:8443", None), ("http://m.example:8443", Some("own"))] {
            assert_eq!(servers(server, token), [(here.clone(), None)]);
        }
        let headers = target().headers(Some("own")).unwrap();
        assert_eq!(headers["authorization"], "Bearer own");
        assert!(headers.values().all(HeaderValue::is_sensitive));
    }

    #[test]
    fn a_token_with_a_line_break_is_not_sent() {
        let mut bad = target();
        bad.credentials.token = "two\nlines".into();
        assert!(bad.headers(None).is_err());
        assert!(target().headers(Some("two\nlines")).is_err());
    }

    #[test]
    fn the_endpoint_always_has_a_port() {
        let mut access = access("https://10.0.0.1", None);
        access.ca = Some(b"pem".to_vec());
        assert_eq!(endpoint(&access).unwrap(), ("10.0.0.1:443".into(), b"pem".to_vec()));
        access.server = "https://[::1]:6443/prefix".into();
        assert_eq!(endpoint(&access).unwrap().0, "[::1]:6443");
        access.ca = None;
        assert!(matches!(endpoint(&access), Err(EndpointError::NoCa)));
    }
}
