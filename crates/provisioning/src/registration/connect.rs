//! `/v3/connect/agent`: a machine says who it is and gets the one credential it needs.
//!
//! The answer comes within 50 s, because the client gives up after 60: what is not ready by then is a 503 that
//! says when to ask again. Asking again is harmless, every step finds what an earlier one made. What can never become a
//! machine is a 400, 403 or 409 that says why, before anything is made. [`bearer`](super::bearer) knows whose token it is,
//! [`admit`](super::admit) whether a server that a person brought is taken, [`credential`](super::credential) what it gets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use drover_api::capi::v1beta2::Machine;
use drover_runtime::{Error, ObjectKey};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::bootstrap::script::registration_token;
use crate::context::Context;
use crate::keys::labels;
use crate::registration::admit::Admitted;
use crate::registration::bearer::{self, Found};
use crate::registration::check;
use crate::registration::credential::is_proof;
use crate::registration::queue::Queues;
use crate::registration::rate::{self, Buckets, Rate};
use crate::registration::terms::Refusal;
use crate::registration::waiting::Waiters;
use crate::store::Writer;

/// The longest a call is held.
const HOLD: Duration = Duration::from_secs(50);
/// A cache that has not seen a write after this long is not waited for.
pub(super) const NOTE_LIMIT: Duration = Duration::from_secs(2);
/// Calls with one token: a rack of machines may come at once, and then a steady stream.
const PER_TOKEN: Rate = Rate { burst: 100, per_second: 20.0 };
/// Calls with unknown tokens from one address. The install script with a wrong token calls every five seconds.
const PER_ADDRESS: Rate = Rate { burst: 30, per_second: 1.0 };

/// A machine's call.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Without `Bearer `.
    pub bearer: String,
    /// `X-Cattle-*` headers: names in lower case, prefix cut.
    pub headers: BTreeMap<String, Vec<String>>,
    /// Host header, used when the server has no URL of its own.
    pub host: String,
    /// Where the call comes from.
    pub address: Option<IpAddr>,
}

impl Call {
    /// The credential that a machine already has.
    pub(super) fn machine_token(&self) -> Option<&str> {
        self.headers.get(MACHINE_TOKEN)?.first().map(|token| token.trim()).filter(|token| !token.is_empty())
    }
}

/// `X-Cattle-Machine-Token`: with it a machine that registers again proves that it is the one that was registered. It is
/// neither stored nor logged.
const MACHINE_TOKEN: &str = "machine-token";

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Seconds, for a 429 or 503.
    pub retry_after: Option<u32>,
    pub body: String,
}

impl Answer {
    fn refuse(status: u16, why: &str) -> Self {
        Self { status, retry_after: None, body: why.to_owned() }
    }

    fn later(why: &str) -> Self {
        Self { status: 503, retry_after: Some(5), body: why.to_owned() }
    }

    fn too_often(wait: Duration, why: &str) -> Self {
        Self { status: 429, retry_after: Some(rate::seconds(wait)), body: why.to_owned() }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::refuse(refusal.status, &refusal.why)
    }
}

/// The endpoint, to be mounted by a server.
#[derive(Clone)]
pub struct Connect {
    pub(super) context: Context,
    pub(super) writer: Writer,
    pub(super) waiters: Waiters,
    pub(super) queues: Queues,
    limits: Arc<Limits>,
}

struct Limits {
    /// By digest of the token.
    tokens: Buckets<String>,
    addresses: Buckets<IpAddr>,
}

impl Connect {
    pub fn new(context: &Context) -> Self {
        let store = &context.store;
        bearer::index(store);
        let waiters = Waiters::default();
        waiters.follow(&store.secrets);
        waiters.follow(&store.accounts);
        waiters.follow(&store.machines);
        let limits = Limits { tokens: Buckets::new(PER_TOKEN), addresses: Buckets::new(PER_ADDRESS) };
        Self {
            context: context.clone(),
            writer: Writer::new(store, "connect", "registration"),
            waiters,
            queues: Queues::default(),
            limits: Arc::new(limits),
        }
    }

    /// `/v3/connect/agent`.
    pub async fn agent(&self, call: &Call) -> Answer {
        self.agent_recognised(call, &|| ()).await
    }

    /// The same; `recognised` is called as soon as the token is found to be good, because the call may then be held.
    pub async fn agent_recognised(&self, call: &Call, recognised: &(dyn Fn() + Send + Sync)) -> Answer {
        match self.connect(call, recognised).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(error = error.chain(), "registration failed");
                Answer::later("the request could not be served now")
            }
        }
    }

    async fn connect(&self, call: &Call, recognised: &(dyn Fn() + Send + Sync)) -> Result<Answer, Error> {
        if !self.context.store.is_synced() {
            return Ok(Answer::later("the server is still starting"));
        }
        let found = self.identify(&call.bearer);
        if let Some(answer) = self.too_often(call, &found) {
            return Ok(answer);
        }
        let Some(id) = call.headers.get("id").and_then(|values| values.first()).filter(|id| !id.is_empty())
        else {
            return Ok(Answer::refuse(401, "X-Cattle-Id is missing"));
        };
        // Before a bootstrap token is used: a call that is refused for this does not count as its use.
        if let Some(why) = check::id_problem(id) {
            return Ok(Answer::refuse(400, &why));
        }
        let deadline = Instant::now() + HOLD;
        let (machine, registration, _place) = match found {
            Found::Nothing => return Ok(Answer::refuse(401, "the token is not known")),
            // Machines that Drover made are what their pools say; of them nothing but the id is looked at.
            Found::Bootstrap(secret, machine) => {
                if !self.accept(&secret, &machine).await? {
                    return Ok(Answer::refuse(401, "the bootstrap token has expired"));
                }
                (machine, None, None)
            }
            Found::Registration(registration) => match self.admit(call, &registration, id, deadline).await? {
                Admitted::Machine(machine, place) => (machine, Some(registration), place),
                Admitted::Refused(refusal) => return Ok(refusal.into()),
                Admitted::Pending(why) => return Ok(Answer::later(why)),
            },
        };
        recognised();
        let Some(credential) = self.credential(&machine, deadline).await? else {
            return Ok(Answer::later("the machine's plan is not ready yet"));
        };
        if !is_proof(call, &credential) {
            let refusal = match &registration {
                Some(registration) => self.without_proof(&machine, registration, id),
                None => self.other_server(&machine, id),
            };
            if let Some(refusal) = refusal {
                return Ok(refusal.into());
            }
        }
        self.note_id(&machine, id).await?;
        let body = json!({
            "kubeConfig": self.kubeconfig(&call.host, &credential.token),
            "namespace": credential.namespace,
            "secretName": credential.secret,
        });
        Ok(Answer {
            status: 200,
            retry_after: None,
            body: serde_json::to_string_pretty(&body).unwrap_or_default(),
        })
    }

    /// Limits the rate of calls per token; without a known token, per address.
    fn too_often(&self, call: &Call, found: &Found) -> Option<Answer> {
        let now = std::time::Instant::now();
        if !matches!(found, Found::Nothing) {
            let wait = self.limits.tokens.take(registration_token(&call.bearer), now).err()?;
            return Some(Answer::too_often(
                wait,
                "too many machines register with this token at once; try again later",
            ));
        }
        let wait = self.limits.addresses.take(rate::caller(call.address?), now).err()?;
        Some(Answer::too_often(wait, "too many calls with tokens that are not known; try again later"))
    }

    async fn note_id(&self, machine: &Machine, id: &str) -> Result<(), Error> {
        if machine.labels().get(labels::MACHINE_ID).is_some_and(|noted| noted == id) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": machine.metadata.uid, "labels": {labels::MACHINE_ID: id}}});
        self.writer.merge::<Machine>(&ObjectKey::of(machine), patch).await
    }
}
