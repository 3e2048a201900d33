//! Keeps the connection to the management plane: connects, lists, watches, and retries forever.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time};

use super::{
    api::{Api, Error, Event},
    secret::Secret,
};
use crate::{
    config::{self, Connection},
    host::Host,
};

/// The duration of a watch, before jitter.
const WATCH_SECONDS: u64 = 300;
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const LAST_BACKOFF: Duration = Duration::from_secs(30);

/// The latest state of the secret.
pub enum Update {
    /// The secret exists. `authoritative` if it is from a list; a watch can be behind.
    Secret {
        /// The secret.
        secret: Box<Secret>,
        /// See above.
        authoritative: bool,
    },
    /// The secret does not exist.
    Deleted {
        /// The uid of the deleted secret, if a watch reported it.
        uid: Option<String>,
    },
}

/// The state shared between the task that keeps the connection and the one that uses it.
pub struct Link {
    host: Arc<dyn Host>,
    file: PathBuf,
    strict: bool,
    shared: Mutex<Shared>,
    /// Notified of a new state of the secret, and when the connection is restored.
    pub changed: Notify,
    /// Notified when the credential was rejected.
    refused: Notify,
}

#[derive(Default)]
struct Shared {
    update: Option<Update>,
    api: Option<Arc<Api>>,
    connected: bool,
    trouble: Option<String>,
}

impl Link {
    /// Validates the connection file, so that an invalid file is reported at start.
    pub fn new(host: Arc<dyn Host>, file: PathBuf, strict: bool) -> Result<Self, LinkError> {
        let connection = Connection::load(&*host, &file)?;
        let api = Api::new(host.clone(), &connection, strict, false)?;
        let shared = Shared { api: Some(Arc::new(api)), ..Shared::default() };
        Ok(Self {
            host,
            file,
            strict,
            shared: Mutex::new(shared),
            changed: Notify::new(),
            refused: Notify::new(),
        })
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        // The lock is never poisoned.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the latest state of the secret, if it is new.
    pub fn take(&self) -> Option<Update> {
        self.shared().update.take()
    }

    /// The client for reading and writing the secret.
    pub fn api(&self) -> Option<Arc<Api>> {
        self.shared().api.clone()
    }

    /// Whether list and watch work, the current problem, and the server.
    pub fn state(&self) -> (bool, Option<String>, Option<String>) {
        let shared = self.shared();
        (shared.connected, shared.trouble.clone(), shared.api.as_ref().map(|api| api.server()))
    }

    /// Processes a failed request. A rejected credential ends the session, although its watch could continue for
    /// minutes: the next session reads the connection file again, which can have a renewed token.
    pub fn note_failure(&self, error: &Error) {
        if error.is_unauthorized() {
            self.refused.notify_one();
        }
    }

    fn set(&self, mut update: Update) {
        let mut shared = self.shared();
        if let Update::Secret { authoritative, .. } = &mut update {
            // An event after a list that was not processed yet replaces that list, and is therefore authoritative too:
            // if it were discarded as outdated, the list would be lost.
            *authoritative |= matches!(
                shared.update,
                Some(Update::Deleted { .. } | Update::Secret { authoritative: true, .. })
            );
        }
        shared.update = Some(update);
        drop(shared);
        self.changed.notify_one();
    }

    /// Runs forever.
    pub async fn run(&self) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            // An expired watch is not an error, but a server that always reports it gets the same pauses.
            if let Err(error) = self.session(&mut backoff).await {
                self.down(&error);
            }
            // Half fixed, half random, so that many agents do not reconnect at the same time.
            let half = backoff / 2;
            time::sleep(half + half.mul_f64(self.host.random() as f64 / u64::MAX as f64)).await;
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    /// Connects, lists, and watches until there is an error.
    async fn session(&self, backoff: &mut Duration) -> Result<(), LinkError> {
        // Read again each time, because the token may have been renewed.
        let connection = Connection::load(&*self.host, &self.file)?;
        let api = Arc::new(self.connect(&connection).await?);
        // An earlier rejection was for another credential.
        let _ = tokio::time::timeout(Duration::ZERO, self.refused.notified()).await;
        self.shared().api = Some(api.clone());
        let (secret, mut revision) = api.list().await?;
        self.set(match secret {
            Some(secret) => Update::Secret { secret: Box::new(secret), authoritative: true },
            None => Update::Deleted { uid: None },
        });
        self.up(&api.server());
        loop {
            let seconds = WATCH_SECONDS + self.host.random() % WATCH_SECONDS;
            let mut watch = match api.watch(&revision, seconds).await {
                Err(Error::Expired) => return Ok(()),
                other => other?,
            };
            let started = time::Instant::now();
            loop {
                let next = tokio::select! {
                    next = watch.next() => next,
                    () = self.refused.notified() => return Err(LinkError::Refused),
                };
                match next {
                    Ok(Some(Event::Changed(secret))) => {
                        *backoff = FIRST_BACKOFF;
                        self.set(Update::Secret { secret: Box::new(secret), authoritative: false });
                    }
                    Ok(Some(Event::Deleted(uid))) => self.set(Update::Deleted { uid: Some(uid) }),
                    Ok(None) => break,
                    Err(Error::Expired) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            watch.revision().clone_into(&mut revision);
            if started.elapsed() < Duration::from_secs(1) {
                // A server that ends watches immediately has a problem; do not add load.
                time::sleep(FIRST_BACKOFF).await;
            } else {
                *backoff = FIRST_BACKOFF;
            }
        }
    }

    /// Connects with the kubeconfig's CA; if that CA did not sign the server's certificate, with the system's CAs,
    /// unless verification is strict.
    async fn connect(&self, connection: &Connection) -> Result<Api, LinkError> {
        let api = Api::new(self.host.clone(), connection, self.strict, false)?;
        match api.version().await {
            Ok(()) => Ok(api),
            Err(Error::Request(error)) if error.is_unknown_issuer() && !self.strict => {
                let fallback = Api::new(self.host.clone(), connection, self.strict, true)?;
                match fallback.version().await {
                    Ok(()) => {
                        tracing::warn!(
                            "the server's certificate is not signed by the CA in {}, but by a CA that this system trusts",
                            self.file.display()
                        );
                        Ok(fallback)
                    }
                    Err(_) => Err(Error::from(error).into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn up(&self, server: &str) {
        let mut shared = self.shared();
        let was = std::mem::replace(&mut shared.connected, true);
        shared.trouble = None;
        drop(shared);
        if !was {
            tracing::info!("connected to {server}");
        }
        self.changed.notify_one();
    }

    fn down(&self, error: &LinkError) {
        let text = error.to_string();
        let mut shared = self.shared();
        let was = std::mem::replace(&mut shared.connected, false);
        let new = shared.trouble.as_ref() != Some(&text);
        shared.trouble = Some(text.clone());
        drop(shared);
        // Log once per change of state, not per attempt.
        if was || new {
            tracing::warn!("not connected to the management plane, retrying: {text}");
        }
        self.changed.notify_one();
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection file is invalid.
    #[error("{0}")]
    Config(#[from] config::Error),
    /// A request failed.
    #[error("{0}")]
    Api(#[from] Error),
    /// Another request on this connection was rejected.
    #[error("the API server returned 401: the credential was rejected")]
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Attr, MemoryHost, testing::NoProgram};

    fn link() -> Link {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, NoProgram));
        let kubeconfig = "clusters: [{name: c, cluster: {server: 'http://m'}}]\nusers: [{name: u, user: {}}]\n\
                          contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
        let file =
            serde_json::json!({"kubeConfig": kubeconfig, "namespace": "n", "secretName": "s"}).to_string();
        let attr = Attr { mode: 0o600, owner: Some(host.identity()) };
        host.replace(std::path::Path::new("/c.json"), file.as_bytes(), attr).unwrap();
        Link::new(host, "/c.json".into(), false).unwrap()
    }

    fn update(revision: &str, authoritative: bool) -> Update {
        let object = serde_json::json!({"metadata": {"uid": "u", "resourceVersion": revision}});
        Update::Secret { secret: Box::new(Secret::from_value(object).unwrap()), authoritative }
    }

    #[test]
    fn an_event_after_an_unprocessed_list_replaces_the_list() {
        let link = link();
        let received = |link: &Link| match link.take() {
            Some(Update::Secret { secret, authoritative }) => Some((secret.resource_version, authoritative)),
            _ => None,
        };
        link.set(update("7", true));
        link.set(update("8", false));
        link.set(update("9", false));
        assert_eq!(received(&link), Some(("9".into(), true)));
        link.set(update("10", false));
        assert_eq!(received(&link), Some(("10".into(), false)), "the list was processed");
        link.set(Update::Deleted { uid: None });
        link.set(update("1", false));
        assert_eq!(received(&link), Some(("1".into(), true)));
    }
}
