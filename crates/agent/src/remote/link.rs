//! Keeps the connection to the management plane: connects, lists, watches, and starts over for ever.

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

/// How long one watch may last, before jitter.
const WATCH_SECONDS: u64 = 300;
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const LAST_BACKOFF: Duration = Duration::from_secs(30);

/// The latest word on the secret.
pub enum Word {
    /// It is like this. `authoritative` when it comes from a list and not from a watch, which may lag behind.
    Secret {
        /// The secret.
        secret: Box<Secret>,
        /// See above.
        authoritative: bool,
    },
    /// It does not exist.
    Gone {
        /// Which one, if it was a watch that said so.
        uid: Option<String>,
    },
}

/// State shared between the task that keeps the connection and the one that uses it.
pub struct Link {
    host: Arc<dyn Host>,
    file: PathBuf,
    strict: bool,
    shared: Mutex<Shared>,
    /// Woken when there is a word, or when the connection is up again.
    pub news: Notify,
    /// Woken when the credential was refused.
    refused: Notify,
}

#[derive(Default)]
struct Shared {
    word: Option<Word>,
    api: Option<Arc<Api>>,
    connected: bool,
    trouble: Option<String>,
}

impl Link {
    /// Checks the connection file, so that a wrong one is told at start.
    pub fn new(host: Arc<dyn Host>, file: PathBuf, strict: bool) -> Result<Self, LinkError> {
        let connection = Connection::load(&*host, &file)?;
        let api = Api::new(host.clone(), &connection, strict, false)?;
        let shared = Shared { api: Some(Arc::new(api)), ..Shared::default() };
        Ok(Self {
            host,
            file,
            strict,
            shared: Mutex::new(shared),
            news: Notify::new(),
            refused: Notify::new(),
        })
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Nothing panics while it is held.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest word, once.
    pub fn take(&self) -> Option<Word> {
        self.shared().word.take()
    }

    /// To get and put.
    pub fn api(&self) -> Option<Arc<Api>> {
        self.shared().api.clone()
    }

    /// Whether list and watch work at the moment, and what is wrong if not.
    pub fn state(&self) -> (bool, Option<String>, Option<String>) {
        let shared = self.shared();
        (shared.connected, shared.trouble.clone(), shared.api.as_ref().map(|api| api.server()))
    }

    /// Looks at a call that failed. A refused credential ends the session, although its watch may go on for minutes: the
    /// next one reads the connection file anew, where a renewed token may be.
    pub fn heed(&self, error: &Error) {
        if error.is_unauthorized() {
            self.refused.notify_one();
        }
    }

    fn tell(&self, mut word: Word) {
        let mut shared = self.shared();
        if let Word::Secret { authoritative, .. } = &mut word {
            // An event that follows a list nobody has heard of yet stands for that list too: dropped as a late one, it
            // would take the list with it.
            *authoritative |=
                matches!(shared.word, Some(Word::Gone { .. } | Word::Secret { authoritative: true, .. }));
        }
        shared.word = Some(word);
        drop(shared);
        self.news.notify_one();
    }

    /// Runs for ever.
    pub async fn run(&self) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            // A watch that is too old is no trouble, but who says so again and again gets the same rests.
            if let Err(error) = self.session(&mut backoff).await {
                self.down(&error);
            }
            // Half fixed, half random: many agents must not come back in one wave.
            let half = backoff / 2;
            time::sleep(half + half.mul_f64(self.host.random() as f64 / u64::MAX as f64)).await;
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    /// Connects, lists, and watches until something breaks.
    async fn session(&self, backoff: &mut Duration) -> Result<(), LinkError> {
        // Read anew each time: the token may have been renewed.
        let connection = Connection::load(&*self.host, &self.file)?;
        let api = Arc::new(self.connect(&connection).await?);
        // What was refused before was refused to another credential.
        let _ = tokio::time::timeout(Duration::ZERO, self.refused.notified()).await;
        self.shared().api = Some(api.clone());
        let (secret, mut revision) = api.list().await?;
        self.tell(match secret {
            Some(secret) => Word::Secret { secret: Box::new(secret), authoritative: true },
            None => Word::Gone { uid: None },
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
                        self.tell(Word::Secret { secret: Box::new(secret), authoritative: false });
                    }
                    Ok(Some(Event::Deleted(uid))) => self.tell(Word::Gone { uid: Some(uid) }),
                    Ok(None) => break,
                    Err(Error::Expired) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            watch.revision().clone_into(&mut revision);
            if started.elapsed() < Duration::from_secs(1) {
                // A server that ends watches at once is in trouble; do not add to it.
                time::sleep(FIRST_BACKOFF).await;
            } else {
                *backoff = FIRST_BACKOFF;
            }
        }
    }

    /// With the kubeconfig's authority; if that did not issue the server's certificate, with the system's, unless
    /// verification is strict.
    async fn connect(&self, connection: &Connection) -> Result<Api, LinkError> {
        let api = Api::new(self.host.clone(), connection, self.strict, false)?;
        match api.version().await {
            Ok(()) => Ok(api),
            Err(Error::Request(error)) if error.is_unknown_issuer() && !self.strict => {
                let fallback = Api::new(self.host.clone(), connection, self.strict, true)?;
                match fallback.version().await {
                    Ok(()) => {
                        tracing::warn!(
                            "the server's certificate is not issued by the authority in {}, but is trusted by this system",
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
        self.news.notify_one();
    }

    fn down(&self, error: &LinkError) {
        let text = error.to_string();
        let mut shared = self.shared();
        let was = std::mem::replace(&mut shared.connected, false);
        let new = shared.trouble.as_ref() != Some(&text);
        shared.trouble = Some(text.clone());
        drop(shared);
        // One line per change of state, not per attempt.
        if was || new {
            tracing::warn!("not connected to the management plane, retrying: {text}");
        }
        self.news.notify_one();
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection file.
    #[error("{0}")]
    Config(#[from] config::Error),
    /// A request.
    #[error("{0}")]
    Api(#[from] Error),
    /// A request of somebody else on this connection.
    #[error("the API server answers 401: the credential is not accepted")]
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

    fn word(revision: &str, authoritative: bool) -> Word {
        let object = serde_json::json!({"metadata": {"uid": "u", "resourceVersion": revision}});
        Word::Secret { secret: Box::new(Secret::from_value(object).unwrap()), authoritative }
    }

    #[test]
    fn an_event_after_a_list_that_nobody_heard_stands_for_the_list() {
        let link = link();
        let heard = |link: &Link| match link.take() {
            Some(Word::Secret { secret, authoritative }) => Some((secret.resource_version, authoritative)),
            _ => None,
        };
        link.tell(word("7", true));
        link.tell(word("8", false));
        link.tell(word("9", false));
        assert_eq!(heard(&link), Some(("9".into(), true)));
        link.tell(word("10", false));
        assert_eq!(heard(&link), Some(("10".into(), false)), "the list was heard");
        link.tell(Word::Gone { uid: None });
        link.tell(word("1", false));
        assert_eq!(heard(&link), Some(("1".into(), true)));
    }
}
