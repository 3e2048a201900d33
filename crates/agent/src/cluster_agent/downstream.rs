//! The API of the cluster that this node serves: the three requests that registering needs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;

use super::secrets::{ACCOUNT, ACCOUNT_ANNOTATION, List, NAMESPACE, TOKEN_SECRET, TOKEN_TYPE};
use crate::{
    host::Host,
    http::{self as client, Client, Url, UrlError, tls},
    kubeconfig::Access,
};

const LIMIT: usize = 8 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const WATCH_SECONDS: u64 = 600;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The kubeconfig's server.
    #[error("kubeconfig: {0}")]
    Url(#[from] UrlError),
    /// The kubeconfig's certificates.
    #[error("kubeconfig: {0}")]
    Tls(#[from] tls::Error),
    /// No answer.
    #[error("{0}")]
    Client(#[from] client::Error),
    /// An answer that says no.
    #[error("the API server answers {code}: {message}")]
    Status {
        /// HTTP status.
        code: u16,
        /// What it says.
        message: String,
    },
    /// An answer of another kind.
    #[error("the API server's answer is not the JSON of a list")]
    Json,
    /// Whose token there is to be.
    #[error("waits for ServiceAccount {NAMESPACE}/{ACCOUNT}")]
    NoAccount,
}

/// A client of it.
pub(super) struct Downstream {
    host: Arc<dyn Host>,
    client: Client,
    authorization: Option<String>,
}

impl Downstream {
    /// Prepares, without connecting.
    pub(super) fn new(host: Arc<dyn Host>, access: &Access) -> Result<Self, Error> {
        let url = Url::parse(&access.server)?;
        let certificate = access.client_cert.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
        let tls = match url.https {
            true => Some(tls::client_config(access.trust(false, false), certificate)?),
            false => None,
        };
        // It is on this very node: no proxy is on the way.
        let client = Client::new(host.clone(), url, access.tls_server_name.as_deref(), tls)?.without_proxy();
        let authorization = access.token.as_ref().map(|token| format!("Bearer {token}"));
        Ok(Self { host, client, authorization })
    }

    /// Every Secret of the namespace, which need not exist.
    pub(super) async fn secrets(&self) -> Result<List, Error> {
        let answer = self.client.send(self.request(Method::GET, &secrets(), Bytes::new())?).await?;
        let body = accepted(answer).await?;
        serde_json::from_slice(&body).map_err(|_| Error::Json)
    }

    /// Waits until a Secret of the namespace is another than at this revision. It may return for less.
    pub(super) async fn changed(&self, revision: &str) -> Result<(), Error> {
        let seconds = WATCH_SECONDS + self.host.random() % WATCH_SECONDS;
        let path = format!("{}?watch=true&resourceVersion={revision}&timeoutSeconds={seconds}", secrets());
        let answer = self.client.send_alone(self.request(Method::GET, &path, Bytes::new())?).await?;
        if answer.status() == StatusCode::GONE {
            return Ok(());
        }
        if !answer.status().is_success() {
            return accepted(answer).await.map(drop);
        }
        // Whatever the event is, the next list knows it: there is no need to read it.
        let silence = Duration::from_secs(seconds + 30);
        match tokio::time::timeout(silence, answer.into_body().frame()).await {
            Err(_) => Err(client::Error::Timeout(silence).into()),
            Ok(Some(Err(error))) => Err(client::Error::from(error).into()),
            Ok(None | Some(Ok(_))) => Ok(()),
        }
    }

    /// Makes the account's token Secret; the cluster fills it in.
    pub(super) async fn make_token(&self) -> Result<(), Error> {
        // Without its account the Secret would be taken away at once.
        let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}");
        let answer = self.client.send(self.request(Method::GET, &account, Bytes::new())?).await?;
        match accepted(answer).await {
            Err(Error::Status { code: 404, .. }) => return Err(Error::NoAccount),
            other => other?,
        };
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": TOKEN_TYPE,
            "metadata": {
                "name": TOKEN_SECRET, "namespace": NAMESPACE, "annotations": {ACCOUNT_ANNOTATION: ACCOUNT},
            },
        });
        let request = self.request(Method::POST, &secrets(), secret.to_string().into())?;
        match accepted(self.client.send(request).await?).await {
            // Another control-plane node was faster.
            Err(Error::Status { code: 409, .. }) => Ok(()),
            other => other.map(drop),
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

fn secrets() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets")
}

/// The body of an answer that says yes.
async fn accepted(answer: Response<Incoming>) -> Result<Bytes, Error> {
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
