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
    /// Where the WebSocket is opened: whatever path the URL has is dropped, as the original does.
    pub(super) fn uri(&self) -> Result<Uri, http::Error> {
        Ok(format!("wss://{}/v3/connect", self.credentials.url.authority()).parse::<Uri>()?)
    }

    /// Who opens it.
    pub(super) fn headers(&self) -> Result<HeaderMap, http::Error> {
        let mut headers = HeaderMap::new();
        let values =
            [("x-api-tunnel-token", self.credentials.token.clone()), ("x-api-tunnel-params", self.params())];
        for (name, value) in values {
            let mut value = HeaderValue::from_str(&value)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }

    fn params(&self) -> String {
        let cluster = json!({
            "address": self.address,
            "token": self.account_token,
            "caCert": STANDARD.encode(&self.ca),
        });
        STANDARD.encode(json!({ "cluster": cluster }).to_string())
    }

    /// Keeps its secrets out of texts of others.
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
        let headers = target().headers().unwrap();
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

    #[test]
    fn the_url_keeps_its_host_and_port_only() {
        assert_eq!(target().uri().unwrap(), "wss://m.example:8443/v3/connect");
        let mut bad = target();
        bad.credentials.token = "two\nlines".into();
        assert!(bad.headers().is_err());
    }

    #[test]
    fn the_endpoint_always_has_a_port() {
        let mut access = Access {
            server: "https://10.0.0.1".into(),
            tls_server_name: None,
            ca: Some(b"pem".to_vec()),
            insecure: false,
            token: None,
            client_cert: None,
        };
        assert_eq!(endpoint(&access).unwrap(), ("10.0.0.1:443".into(), b"pem".to_vec()));
        access.server = "https://[::1]:6443/prefix".into();
        assert_eq!(endpoint(&access).unwrap().0, "[::1]:6443");
        access.ca = None;
        assert!(matches!(endpoint(&access), Err(EndpointError::NoCa)));
    }
}
