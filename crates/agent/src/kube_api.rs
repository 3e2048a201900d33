//! A client of a Kubernetes API server. [`crate::remote`] uses it for the plan secret in the management plane, and
//! [`crate::cluster_agent`] for the cluster of this node.
//!
//! It is not `kube`, because that would make the agent larger than a node should have to carry.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    host::Host,
    http::{self as client, Client, Url, UrlError, tls},
    kubeconfig::Access,
};

/// The maximum size of a response. A secret is at most 1 MiB; base64, managedFields and a copy of the plan make it
/// larger on the wire.
pub const LIMIT: usize = 8 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig's server is not a URL.
    #[error("kubeconfig: {0}")]
    Url(#[from] UrlError),
    /// The kubeconfig's certificates are invalid.
    #[error("kubeconfig: {0}")]
    Tls(#[from] tls::Error),
    /// No response.
    #[error("{0}")]
    Client(#[from] client::Error),
    /// An error response.
    #[error("the API server returned {code}: {message}")]
    Status {
        /// HTTP status.
        code: u16,
        /// The message in its body.
        message: String,
    },
    /// A response with an unexpected body.
    #[error("invalid response from the API server: it is not the expected JSON")]
    Json,
}

impl Error {
    /// The status code of an error response.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The kubeconfig cannot be used.
    pub fn is_kubeconfig(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Tls(_))
    }

    /// The server's certificate is signed by an authority that is not trusted.
    pub fn is_unknown_issuer(&self) -> bool {
        matches!(self, Self::Client(error) if error.is_unknown_issuer())
    }
}

/// A client of one API server.
pub struct KubeApi {
    client: Client,
    authorization: Option<String>,
}

impl KubeApi {
    /// Creates a client without connecting. Strict verification ignores `insecure-skip-tls-verify`; `system_roots`
    /// ignores the kubeconfig's authority.
    pub fn new(
        host: Arc<dyn Host>,
        access: &Access,
        strict: bool,
        system_roots: bool,
    ) -> Result<Self, Error> {
        let url = Url::parse(&access.server)?;
        let certificate = access.client_cert.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
        let tls = match url.https {
            true => Some(tls::client_config(access.trust(strict, system_roots), certificate)?),
            false => None,
        };
        Ok(Self {
            client: Client::new(host, url, access.tls_server_name.as_deref(), tls)?,
            authorization: access.token.as_ref().map(|token| format!("Bearer {token}")),
        })
    }

    /// Ignores the proxy variables.
    pub fn without_proxy(mut self) -> Self {
        self.client = self.client.without_proxy();
        self
    }

    /// The server's host and port.
    pub fn authority(&self) -> String {
        self.client.url().authority()
    }

    /// Sends a request and parses the response.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Error> {
        let body = success_body(self.client.send(self.request(method, path, body)?).await?).await?;
        serde_json::from_slice(&body).map_err(|_| Error::Json)
    }

    /// Sends a GET request and parses the response.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Starts a watch, on its own connection.
    pub async fn watch(&self, path: &str) -> Result<Incoming, Error> {
        self.stream(self.request(Method::GET, path, Bytes::new())?).await.map(Response::into_body)
    }

    /// Downloads a public file from the server, without sending the credential.
    pub async fn download(&self, path: &str) -> Result<Response<Incoming>, Error> {
        let mut request = self.request(Method::GET, path, Bytes::new())?;
        request.headers_mut().remove(header::AUTHORIZATION);
        request.headers_mut().remove(header::ACCEPT);
        self.stream(request).await
    }

    async fn stream(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        let answer = self.client.send_on_new_connection(request).await?;
        match answer.status().is_success() {
            true => Ok(answer),
            false => success_body(answer).await.and(Err(Error::Json)),
        }
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let prefix = self.client.url().path.trim_end_matches('/');
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{prefix}{path}"))
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("drover-agent/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        Ok(request.body(Full::new(body)).map_err(client::Error::from)?)
    }
}

/// The body of a successful response.
async fn success_body(answer: Response<Incoming>) -> Result<Bytes, Error> {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let code = answer.status();
    let body = client::read_body(answer.into_body(), LIMIT, BODY_TIMEOUT).await?;
    if code.is_success() {
        return Ok(body);
    }
    let message = serde_json::from_slice::<Status>(&body).map_or_else(
        |_| code.canonical_reason().unwrap_or("no reason given").to_owned(),
        |status| status.message,
    );
    Err(Error::Status { code: code.as_u16(), message })
}
