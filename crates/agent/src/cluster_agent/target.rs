//! Where the tunnel goes and what it says of the cluster. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, Uri};
use serde_json::json;

use super::secrets::Credentials;
use crate::{
    http::{Url, UrlError},
    kubeconfig::Access,
    redact::Redactor,
};

/// Everything a tunnel is opened with. A new value means a new tunnel.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The management plane and the registration token.
    pub(super) credentials: Credentials,
    /// `host:port` of the cluster's API, as this node reaches it.
    pub(super) address: String,
    /// Token of the account `cattle-system/cattle`.
    pub(super) account_token: String,
    /// PEM of the API's authority.
    pub(super) ca: Vec<u8>,
}

/// A server to open the tunnel at.
pub(super) struct Door {
    /// Where it is.
    pub(super) url: Url,
    /// Name in its certificate, if another than the URL's.
    pub(super) server_name: Option<String>,
    /// The machine's own credential, if it is for this server.
    pub(super) token: Option<String>,
}

impl Door {
    /// Where the WebSocket is opened: whatever path the URL has is dropped, as the original does.
    pub(super) fn uri(&self) -> Result<Uri, http::Error> {
        Ok(format!("wss://{}/v3/connect", self.url.authority()).parse::<Uri>()?)
    }
}

/// What the kubeconfig tells of the cluster's API: address and authority.
pub(super) fn endpoint(access: &Access) -> Result<(String, Vec<u8>), EndpointError> {
    let url = Url::parse(&access.server)?;
    let ca = access.ca.clone().ok_or(EndpointError::NoCa)?;
    Ok((format!("{}:{}", url.host, url.port), ca))
}

/// Why a kubeconfig does not suffice to register.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndpointError {
    /// Its server.
    #[error("kubeconfig: {0}")]
    Url(#[from] UrlError),
    /// The management plane would have nothing to verify the API with.
    #[error("kubeconfig: certificate-authority-data is missing")]
    NoCa,
}

impl Target {
    /// Who opens it: the original's headers, and the machine's own credential where it may be shown.
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

    /// Where to open the tunnel, in this order, and what to show there.
    ///
    /// The machine's own credential is for the server that gave it, and for no other: a Secret of the downstream cluster
    /// must not draw it elsewhere. That server comes first, because after a change of its URL the Secret may name it by
    /// another address, where the machine would be a stranger.
    pub(super) fn doors(&self, access: &Access) -> Result<Vec<Door>, UrlError> {
        let asked = &self.credentials.url;
        let own = Url::parse(&access.server)?;
        let Some(token) = access.token.clone().filter(|_| own.https) else {
            return Ok(vec![Door { url: asked.clone(), server_name: None, token: None }]);
        };
        let same = own.host.eq_ignore_ascii_case(&asked.host) && own.port == asked.port;
        let first = Door { url: own, server_name: access.tls_server_name.clone(), token: Some(token) };
        let second = Door { url: asked.clone(), server_name: None, token: None };
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

    /// Keeps its secrets out of texts of others. The machine's own credential is added by who shows it.
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
    fn the_headers_are_those_of_the_original() {
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
    fn the_machines_credential_is_shown_only_to_the_server_that_gave_it() {
        let doors = |server: &str, token: Option<&str>| -> Vec<(String, Option<String>)> {
            let doors = target().doors(&access(server, token)).unwrap();
            doors.into_iter().map(|door| (door.uri().unwrap().to_string(), door.token)).collect()
        };
        let here = "wss://m.example:8443/v3/connect".to_owned();
        let own = Some("own".to_owned());
        assert_eq!(
            doors("https://M.example:8443/prefix", Some("own")),
            [("wss://M.example:8443/v3/connect".to_owned(), own.clone())]
        );
        for (server, there) in [
            ("https://m.example", "wss://m.example/v3/connect"),
            ("https://other.example:8443", "wss://other.example:8443/v3/connect"),
        ] {
            assert_eq!(doors(server, Some("own")), [(there.to_owned(), own.clone()), (here.clone(), None)]);
        }
        // Without a credential of one's own, or where it would be read on the way.
        for (server, token) in [("https://m.example:8443", None), ("http://m.example:8443", Some("own"))] {
            assert_eq!(doors(server, token), [(here.clone(), None)]);
        }
        let headers = target().headers(Some("own")).unwrap();
        assert_eq!(headers["authorization"], "Bearer own");
        assert!(headers.values().all(HeaderValue::is_sensitive));
    }

    #[test]
    fn a_token_of_two_lines_is_not_sent() {
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
