//! The four requests the agent's role allows: list, watch, get and update of one secret.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;

use super::secret::{NotASecret, Secret};
use crate::{
    config::Connection,
    host::Host,
    http::{self as client, Client, Url, UrlError, tls},
    kubeconfig::{self, Access},
};

/// A secret is at most 1 MiB; base64, managedFields and a copy of the plan make it more on the wire.
const LIMIT: usize = 8 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("{0}")]
    Kubeconfig(#[from] kubeconfig::Error),
    /// Its server's address cannot be used.
    #[error("{0}")]
    Url(#[from] UrlError),
    /// Its certificates cannot be used.
    #[error("kubeconfig: {0}")]
    Tls(#[from] tls::Error),
    /// Strict verification needs an authority to verify against.
    #[error("CATTLE_AGENT_STRICT_VERIFY is set, but the kubeconfig has no certificate-authority-data")]
    StrictWithoutCa,
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
    /// The watch must start over with a list.
    #[error("the watch is too old to be continued")]
    Expired,
    /// An answer of another kind.
    #[error("{0}")]
    Secret(#[from] NotASecret),
    /// Something else than a list. Taken for an empty one, it would say that the secret was deleted.
    #[error("the API server's answer is not a list of secrets")]
    NotAList,
    /// An answer that is not JSON.
    #[error("the API server's answer is not JSON")]
    Json,
}

impl Error {
    /// The secret is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { code: 404, .. })
    }

    /// Someone else wrote in between.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { code: 409, .. })
    }

    /// The credential is not good, or no longer.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Status { code: 401, .. })
    }

    /// The configuration is wrong; waiting does not help.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Kubeconfig(_) | Self::Url(_) | Self::Tls(_) | Self::StrictWithoutCa)
    }
}

/// Access to the one secret.
pub struct Api {
    client: Client,
    authorization: Option<String>,
    namespace: String,
    name: String,
}

/// What a watch tells.
pub enum Event {
    /// The secret, new or changed.
    Changed(Secret),
    /// The secret with this uid is gone. There may be another of its name by now.
    Deleted(String),
}

impl Api {
    /// Prepares, without connecting. `system_roots` ignores the kubeconfig's authority.
    pub fn new(
        host: Arc<dyn Host>,
        connection: &Connection,
        strict: bool,
        system_roots: bool,
    ) -> Result<Self, Error> {
        let access: Access = kubeconfig::parse(&connection.kube_config)?;
        if strict && access.ca.is_none() {
            return Err(Error::StrictWithoutCa);
        }
        let url = Url::parse(&access.server)?;
        let tls = if url.https {
            let trust = access.trust(strict, system_roots);
            let client = access.client_cert.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
            Some(tls::client_config(trust, client)?)
        } else {
            None
        };
        Ok(Self {
            client: Client::new(host, url, access.tls_server_name.as_deref(), tls)?,
            authorization: access.token.map(|token| format!("Bearer {token}")),
            namespace: connection.namespace.clone(),
            name: connection.secret_name.clone(),
        })
    }

    /// Where it leads, for people.
    pub fn server(&self) -> String {
        self.client.url().authority()
    }

    /// Whether anybody answers; no permission is needed.
    pub async fn version(&self) -> Result<(), Error> {
        let answer = self.client.send(self.request(Method::GET, "/version", Bytes::new())?).await?;
        self.value(answer).await.map(drop)
    }

    /// The secret and the revision to watch from.
    pub async fn list(&self) -> Result<(Option<Secret>, String), Error> {
        let answer = self.client.send(self.request(Method::GET, &self.selector(), Bytes::new())?).await?;
        let mut list = self.value(answer).await?;
        if list["kind"] != "SecretList" {
            return Err(Error::NotAList);
        }
        let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let found = match list["items"].as_array_mut().filter(|items| !items.is_empty()) {
            None => None,
            Some(items) => {
                let mut item = items.swap_remove(0);
                if let Some(item) = item.as_object_mut() {
                    // Items of a list leave them out, an update needs them.
                    item.entry("apiVersion").or_insert_with(|| "v1".into());
                    item.entry("kind").or_insert_with(|| "Secret".into());
                }
                Some(Secret::from_value(item)?)
            }
        };
        Ok((found, revision))
    }

    /// The secret as it is now.
    pub async fn get(&self) -> Result<Secret, Error> {
        let answer = self.client.send(self.request(Method::GET, &self.object(), Bytes::new())?).await?;
        Ok(Secret::from_value(self.value(answer).await?)?)
    }

    /// Replaces the secret, provided that it is still the version that was read.
    pub async fn put(&self, secret: &Secret) -> Result<Secret, Error> {
        let body = Bytes::from(secret.to_json());
        let answer = self.client.send(self.request(Method::PUT, &self.object(), body)?).await?;
        Ok(Secret::from_value(self.value(answer).await?)?)
    }

    /// Watches from a revision. The server ends the watch after `seconds`.
    pub async fn watch(&self, revision: &str, seconds: u64) -> Result<Watch, Error> {
        let path = format!(
            "{}&watch=true&allowWatchBookmarks=true&resourceVersion={revision}&timeoutSeconds={seconds}",
            self.selector()
        );
        let answer = self.client.send_alone(self.request(Method::GET, &path, Bytes::new())?).await?;
        if answer.status() == StatusCode::GONE {
            return Err(Error::Expired);
        }
        if !answer.status().is_success() {
            self.value(answer).await?;
            return Err(Error::Json);
        }
        // The server ends it in time; if it does not, the connection is dead.
        let silence = Duration::from_secs(seconds + 30);
        Ok(Watch {
            body: answer.into_body(),
            buffer: Vec::new(),
            scanned: 0,
            silence,
            revision: revision.to_owned(),
        })
    }

    /// A file that the server offers to everybody, below its own address. The credential is not for that.
    pub async fn asset(&self, name: &str) -> Result<http::Response<Incoming>, Error> {
        let mut request = self.request(Method::GET, &format!("/assets/{name}"), Bytes::new())?;
        request.headers_mut().remove(header::AUTHORIZATION);
        request.headers_mut().remove(header::ACCEPT);
        let answer = self.client.send_alone(request).await?;
        if !answer.status().is_success() {
            self.value(answer).await?;
            return Err(Error::Json);
        }
        Ok(answer)
    }

    fn object(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.name)
    }

    fn selector(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets?fieldSelector=metadata.name%3D{}", self.namespace, self.name)
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

    async fn value(&self, answer: http::Response<Incoming>) -> Result<Value, Error> {
        #[derive(Deserialize)]
        struct Status {
            message: String,
        }
        let code = answer.status();
        let body = client::read_body(answer.into_body(), LIMIT, BODY_TIMEOUT).await?;
        if code.is_success() {
            return serde_json::from_slice(&body).map_err(|_| Error::Json);
        }
        let message = serde_json::from_slice::<Status>(&body).map_or_else(
            |_| code.canonical_reason().unwrap_or("no reason given").to_owned(),
            |status| status.message,
        );
        Err(Error::Status { code: code.as_u16(), message })
    }
}

/// A running watch.
pub struct Watch {
    body: Incoming,
    buffer: Vec<u8>,
    scanned: usize,
    silence: Duration,
    revision: String,
}

impl Watch {
    /// From where to go on.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The next event; `None` when the server ended the watch in good order.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            while let Some(line) = self.line() {
                if let Some(event) = self.event(&line)? {
                    return Ok(Some(event));
                }
            }
            let frame = tokio::time::timeout(self.silence, self.body.frame())
                .await
                .map_err(|_| client::Error::Timeout(self.silence))?;
            match frame {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(chunk) = frame.map_err(client::Error::from)?.into_data() {
                        self.buffer.extend_from_slice(&chunk);
                    }
                    if self.buffer.len() > LIMIT {
                        return Err(client::Error::Body(LIMIT).into());
                    }
                }
            }
        }
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        let at = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n');
        let Some(at) = at else {
            self.scanned = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.scanned + at + 1);
        self.scanned = 0;
        // The rest is a fresh, small allocation; the line takes the large one with it.
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    fn event(&mut self, line: &[u8]) -> Result<Option<Event>, Error> {
        #[derive(Deserialize)]
        struct Raw {
            r#type: String,
            object: Value,
        }
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let Raw { r#type, object } = serde_json::from_slice(line).map_err(|_| Error::Json)?;
        match r#type.as_str() {
            "ADDED" | "MODIFIED" => {
                let secret = Secret::from_value(object)?;
                self.revision.clone_from(&secret.resource_version);
                Ok(Some(Event::Changed(secret)))
            }
            "DELETED" => {
                let secret = Secret::from_value(object)?;
                self.revision = secret.resource_version;
                Ok(Some(Event::Deleted(secret.uid)))
            }
            "BOOKMARK" => {
                if let Some(revision) = object["metadata"]["resourceVersion"].as_str() {
                    self.revision = revision.to_owned();
                }
                Ok(None)
            }
            _ => match object["code"].as_u64() {
                Some(410) => Err(Error::Expired),
                code => Err(Error::Status {
                    code: code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
                    message: object["message"].as_str().unwrap_or("watch error").to_owned(),
                }),
            },
        }
    }
}
