//! The four requests that the agent's role allows: list, watch, get and update one secret.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;

use super::secret::{NotASecret, Secret};
use crate::{
    config::Connection,
    host::Host,
    http as client,
    kube_api::{self, KubeApi, LIMIT},
    kubeconfig,
};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("{0}")]
    Kubeconfig(#[from] kubeconfig::Error),
    /// Strict verification needs an authority to verify against.
    #[error("CATTLE_AGENT_STRICT_VERIFY is set, but the kubeconfig has no certificate-authority-data")]
    StrictWithoutCa,
    /// The request failed.
    #[error("{0}")]
    Request(#[from] kube_api::Error),
    /// The watch must be restarted with a list.
    #[error("the watch expired")]
    Expired,
    /// An object that is not a secret.
    #[error("{0}")]
    Secret(#[from] NotASecret),
    /// An object that is not a list. Treated as an empty list, it would mean that the secret was deleted.
    #[error("invalid response from the API server: it is not a list of secrets")]
    NotAList,
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Self::Request(error.into())
    }
}

impl Error {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Request(error) => error.code(),
            _ => None,
        }
    }

    /// The secret does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The secret was changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The credential is not valid, or no longer.
    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    /// The configuration is wrong, so a retry cannot succeed.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Kubeconfig(_) | Self::StrictWithoutCa => true,
            Self::Request(error) => error.is_kubeconfig(),
            _ => false,
        }
    }
}

/// Access to the one secret.
pub struct Api {
    api: KubeApi,
    namespace: String,
    name: String,
}

/// An event of a watch.
pub enum Event {
    /// The secret was created or changed.
    Changed(Secret),
    /// The secret with this uid was deleted. A new one with the same name may exist.
    Deleted(String),
}

impl Api {
    /// Creates a client without connecting. `system_roots` ignores the kubeconfig's authority.
    pub fn new(
        host: Arc<dyn Host>,
        connection: &Connection,
        strict: bool,
        system_roots: bool,
    ) -> Result<Self, Error> {
        let access = kubeconfig::parse(&connection.kube_config)?;
        if strict && access.ca.is_none() {
            return Err(Error::StrictWithoutCa);
        }
        Ok(Self {
            api: KubeApi::new(host, &access, strict, system_roots)?,
            namespace: connection.namespace.clone(),
            name: connection.secret_name.clone(),
        })
    }

    /// The server's host and port, for messages.
    pub fn server(&self) -> String {
        self.api.authority()
    }

    /// Checks that the server responds; no permission is needed.
    pub async fn version(&self) -> Result<(), Error> {
        self.api.get::<Value>("/version").await?;
        Ok(())
    }

    /// The secret and the revision to watch from.
    pub async fn list(&self) -> Result<(Option<Secret>, String), Error> {
        let mut list: Value = self.api.get(&self.selector()).await?;
        if list["kind"] != "SecretList" {
            return Err(Error::NotAList);
        }
        let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let found = match list["items"].as_array_mut().filter(|items| !items.is_empty()) {
            None => None,
            Some(items) => {
                let mut item = items.swap_remove(0);
                if let Some(item) = item.as_object_mut() {
                    // Items of a list do not have these fields, but an update needs them.
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
        Ok(Secret::from_value(self.api.get(&self.object()).await?)?)
    }

    /// Replaces the secret if it has not changed since it was read.
    pub async fn put(&self, secret: &Secret) -> Result<Secret, Error> {
        let body = Bytes::from(secret.to_json());
        Ok(Secret::from_value(self.api.send(Method::PUT, &self.object(), body).await?)?)
    }

    /// Watches from a revision. The server ends the watch after `seconds`.
    pub async fn watch(&self, revision: &str, seconds: u64) -> Result<Watch, Error> {
        let path = format!(
            "{}&watch=true&allowWatchBookmarks=true&resourceVersion={revision}&timeoutSeconds={seconds}",
            self.selector()
        );
        let body = match self.api.watch(&path).await {
            Err(error) if error.code() == Some(410) => return Err(Error::Expired),
            other => other?,
        };
        // If the server does not end the watch in time, the connection is dead.
        let silence = Duration::from_secs(seconds + 30);
        Ok(Watch { body, buffer: Vec::new(), scanned: 0, silence, revision: revision.to_owned() })
    }

    /// A file that the server offers to everyone, downloaded without the credential.
    pub async fn asset(&self, name: &str) -> Result<http::Response<Incoming>, Error> {
        Ok(self.api.download(&format!("/assets/{name}")).await?)
    }

    fn object(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.name)
    }

    fn selector(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets?fieldSelector=metadata.name%3D{}", self.namespace, self.name)
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
    /// The revision to continue from.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The next event; `None` when the server ended the watch normally.
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
        // The rest is a new, small allocation; the line keeps the large one.
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
        let Raw { r#type, object } = serde_json::from_slice(line).map_err(|_| kube_api::Error::Json)?;
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
                code => Err(kube_api::Error::Status {
                    code: code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
                    message: object["message"].as_str().unwrap_or("watch error").to_owned(),
                }
                .into()),
            },
        }
    }
}
