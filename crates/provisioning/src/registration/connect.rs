//! `/v3/connect/agent`: a machine says who it is and gets the one credential it needs.
//!
//! The answer comes within 50 s, because the client gives up after 60: what is not ready by then is a 503 that
//! says when to ask again. Asking again is harmless, every step finds what an earlier one made. What can never become a
//! machine is a 400 that says why, before anything is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drover_api::capi::v1beta2::{self as capi, Machine};
use drover_runtime::{Error, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bootstrap::controller::service_account_token;
use crate::bootstrap::objects;
use crate::bootstrap::script::registration_token;
use crate::bootstrap::token::{Times, is_valid};
use crate::context::Context;
use crate::controlplane::observe::text;
use crate::controlplane::planner::node::base64_encode;
use crate::controlplane::planner::write::rfc3339;
use crate::keys::{annotations, labels};
use crate::machine::unmanaged::name_of;
use crate::owner::owner_name;
use crate::registration::{check, machines};
use crate::store::Writer;

/// Index of token secrets by what a machine presents.
const BY_BOOTSTRAP_TOKEN: &str = "provisioning/bootstrap-token";
/// Index of registration token secrets by their tokens.
const BY_REGISTRATION_TOKEN: &str = "provisioning/registration-token";

/// The longest a call is held.
const HOLD: Duration = Duration::from_secs(50);
/// A cache that has not seen a write after this long is not waited for.
const NOTE_LIMIT: Duration = Duration::from_secs(2);

/// A machine's call.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Without `Bearer `.
    pub bearer: String,
    /// `X-Cattle-*` headers: names in lower case, prefix cut.
    pub headers: BTreeMap<String, Vec<String>>,
    /// Host header, used when the server has no URL of its own.
    pub host: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Seconds, for a 503.
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
}

/// The endpoint, to be mounted by a server.
#[derive(Clone)]
pub struct Connect {
    context: Context,
    writer: Writer,
}

impl Connect {
    pub fn new(context: &Context) -> Self {
        let secrets = &context.store.secrets;
        secrets.index(BY_BOOTSTRAP_TOKEN, |secret| {
            let is_ours = secret.annotations().get(annotations::BOOTSTRAP_TOKEN).is_some_and(|v| v == "true");
            service_account_token(secret)
                .filter(|_| is_ours)
                .map(|token| registration_token(&token))
                .into_iter()
                .collect()
        });
        secrets.index(BY_REGISTRATION_TOKEN, |secret| {
            let is_ours = secret.name_any().starts_with("crt-token-")
                && owner_name(&secret.metadata, "management.cattle.io", "ClusterRegistrationToken").is_some();
            let values = ["token", "previousToken"].into_iter().filter_map(|key| text(secret, key));
            // By digest, so that the time of a lookup tells nothing about a token.
            values.filter(|_| is_ours).map(|token| registration_token(&token)).collect()
        });
        Self { context: context.clone(), writer: Writer::new(&context.store, "connect", "registration") }
    }

    /// `/v3/connect/agent`.
    pub async fn agent(&self, call: &Call) -> Answer {
        match self.connect(call).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(error = error.chain(), "registration failed");
                Answer::later("the request could not be served now")
            }
        }
    }

    async fn connect(&self, call: &Call) -> Result<Answer, Error> {
        let store = &self.context.store;
        if !store.is_synced() {
            return Ok(Answer::later("the server is still starting"));
        }
        let Some(id) = call.headers.get("id").and_then(|values| values.first()).filter(|id| !id.is_empty())
        else {
            return Ok(Answer::refuse(401, "X-Cattle-Id is missing"));
        };
        // Before the token: a call that is refused for this does not count as its use.
        if let Some(why) = check::id_problem(id) {
            return Ok(Answer::refuse(400, &why));
        }
        let deadline = Instant::now() + HOLD;
        let found = match self.by_bootstrap_token(&call.bearer).await? {
            Identity::Machine(machine) => Some(machine),
            Identity::Expired => return Ok(Answer::refuse(401, "the bootstrap token has expired")),
            Identity::Unknown => {
                let Some(management) = self.cluster_of_token(&call.bearer) else {
                    return Ok(Answer::refuse(401, "the token is not known"));
                };
                // Machines that Drover made are what their pools say; of them nothing but the id is looked at.
                if let Some(why) = check::problem(&call.headers) {
                    return Ok(Answer::refuse(400, &why));
                }
                self.custom_machine(call, &management, id, deadline).await?
            }
        };
        let Some(machine) = found else { return Ok(Answer::later("the machine is still being registered")) };
        self.note_id(&machine, id).await?;
        let Some((account, token)) = self.plan_token(&machine, deadline).await? else {
            return Ok(Answer::later("the machine's plan is not ready yet"));
        };
        let secret = account.labels().get(labels::PLAN_SECRET_NAME).cloned().unwrap_or_default();
        let namespace = account.namespace().unwrap_or_default();
        let body = json!({
            "kubeConfig": self.kubeconfig(&call.host, &token),
            "namespace": namespace,
            "secretName": secret,
        });
        Ok(Answer {
            status: 200,
            retry_after: None,
            body: serde_json::to_string_pretty(&body).unwrap_or_default(),
        })
    }

    /// A machine that Drover made presents the hash of its bootstrap account's token.
    async fn by_bootstrap_token(&self, bearer: &str) -> Result<Identity, Error> {
        let store = &self.context.store;
        let Some(secret) = store.secrets.by_index(BY_BOOTSTRAP_TOKEN, bearer).into_iter().next() else {
            return Ok(Identity::Unknown);
        };
        let namespace = secret.namespace().unwrap_or_default();
        let account_name =
            secret.annotations().get("kubernetes.io/service-account.name").cloned().unwrap_or_default();
        let account = store.accounts.get(&ObjectKey::new(&namespace, &account_name));
        let Some(account) = account.filter(|account| {
            account
                .labels()
                .get(labels::SERVICE_ACCOUNT_ROLE)
                .is_some_and(|role| role == labels::ROLE_BOOTSTRAP)
                && secret.annotations().get("kubernetes.io/service-account.uid")
                    == account.metadata.uid.as_ref()
        }) else {
            return Ok(Identity::Unknown);
        };
        let Some(machine) = self.machine_of_account(&account) else { return Ok(Identity::Unknown) };
        if !self.accept(&secret, &machine).await? {
            return Ok(Identity::Expired);
        }
        Ok(Identity::Machine(machine))
    }

    /// Checks and notes the use of a bootstrap token.
    async fn accept(&self, secret: &Secret, machine: &Machine) -> Result<bool, Error> {
        let now = self.context.now();
        let notes = secret.annotations();
        let key = ObjectKey::of(secret);
        if notes.get(annotations::BOOTSTRAP_TOKEN_INVALIDATED).is_some_and(|value| value == "true") {
            return Ok(false);
        }
        let created = secret.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        let access = notes.get(annotations::LAST_ACCESS_TIMESTAMP);
        let last_access: Option<Timestamp> = access.and_then(|text| text.parse().ok());
        if access.is_some() && last_access.is_none() {
            return Ok(false);
        }
        let times = Times { start: start_of(machine).unwrap_or(created), last_access, connected: false };
        let valid = is_valid(times, &self.context.settings.now(), now);
        let (note, value) = if valid {
            (annotations::LAST_ACCESS_TIMESTAMP, rfc3339(now))
        } else {
            (annotations::BOOTSTRAP_TOKEN_INVALIDATED, "true".to_owned())
        };
        let patch = json!({"metadata": {"uid": secret.metadata.uid, "annotations": {note: value}}});
        self.writer.merge("v1", "Secret", &key, patch).await?;
        // The next call is judged by the cache: it must not find the token as it was before this one.
        let noted = || {
            let secret = self.context.store.secrets.get(&key)?;
            (secret.annotations().get(note) == Some(&value)).then_some(())
        };
        self.wait(Instant::now() + NOTE_LIMIT, noted).await;
        Ok(valid)
    }

    /// A server that a person brought presents its cluster's registration token: the name of the management cluster.
    fn cluster_of_token(&self, bearer: &str) -> Option<String> {
        let store = &self.context.store;
        let found = store.secrets.by_index(BY_REGISTRATION_TOKEN, &registration_token(bearer));
        let management = found.first()?.namespace().unwrap_or_default();
        let twin = store.twins.get(&ObjectKey::cluster(&management))?;
        let ours = twin.annotations().get(annotations::ADMINISTRATED).is_some_and(|value| value == "true");
        ours.then_some(management)
    }

    /// Asks for the Machine of such a server; none when it is not there in time.
    async fn custom_machine(
        &self,
        call: &Call,
        management: &str,
        id: &str,
        deadline: Instant,
    ) -> Result<Option<Arc<Machine>>, Error> {
        let store = &self.context.store;
        let name = name_of("custom-", id);
        let key = ObjectKey::new(management, &name);
        let request = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": management, "name": name},
            "type": drover_api::secret_types::MACHINE_REQUEST,
            "data": {"data": base64_encode(json!(call.headers).to_string())},
        });
        self.writer.create(&request).await?;
        let machine = self
            .wait(deadline, || {
                let secret = store.secrets.get(&key)?;
                let label = |key: &str| secret.labels().get(key).cloned();
                let machine = ObjectKey::new(label(labels::MACHINE_NAMESPACE)?, label(labels::MACHINE_NAME)?);
                store.machines.get(&machine)
            })
            .await;
        if machine.is_some() {
            self.writer.delete("v1", "Secret", &key).await?;
        }
        Ok(machine)
    }

    fn machine_of_account(&self, account: &ServiceAccount) -> Option<Arc<Machine>> {
        machines::machine_of_account(&self.context.store, account)
    }

    async fn note_id(&self, machine: &Machine, id: &str) -> Result<(), Error> {
        if machine.labels().get(labels::MACHINE_ID).is_some_and(|noted| noted == id) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": machine.metadata.uid, "labels": {labels::MACHINE_ID: id}}});
        self.writer.merge(capi::API_VERSION, "Machine", &ObjectKey::of(machine), patch).await
    }

    /// The plan account and its token, made if they are not there yet.
    async fn plan_token(
        &self,
        machine: &Machine,
        deadline: Instant,
    ) -> Result<Option<(Arc<ServiceAccount>, String)>, Error> {
        let store = &self.context.store;
        let namespace = machine.namespace().unwrap_or_default();
        let Some(bootstrap) = machine.spec.bootstrap.config_ref.as_ref() else { return Ok(None) };
        let key = ObjectKey::new(&namespace, objects::plan_name(&bootstrap.name));
        let Some(account) = self.wait(deadline, || store.accounts.get(&key)).await else { return Ok(None) };
        let owned =
            self.machine_of_account(&account).is_some_and(|owner| owner.metadata.uid == machine.metadata.uid);
        let is_plan =
            account.labels().get(labels::SERVICE_ACCOUNT_ROLE).is_some_and(|role| role == labels::ROLE_PLAN);
        if !owned || !is_plan {
            return Ok(None);
        }
        let uid = account.metadata.uid.clone().unwrap_or_default();
        let desired: Value = objects::token_secret(&namespace, &key.name, &uid, false);
        let secret = key.sibling(desired["metadata"]["name"].as_str().unwrap_or_default());
        if store.secrets.get(&secret).is_none() {
            self.writer.create(&desired).await?;
        }
        let token = self.wait(deadline, || service_account_token(store.secrets.get(&secret)?.as_ref())).await;
        Ok(token.map(|token| (account, token)))
    }

    fn kubeconfig(&self, host: &str, token: &str) -> String {
        let settings = self.context.settings.now();
        let server = match settings.server_url.as_str() {
            "" => format!("https://{host}"),
            url => url.to_owned(),
        };
        let mut cluster = json!({"server": server});
        if !settings.cacerts.trim().is_empty() {
            let pem = format!("{}\n", settings.cacerts.trim());
            cluster["certificate-authority-data"] = json!(base64_encode(pem));
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "agent", "cluster": cluster}],
            "users": [{"name": "agent", "user": {"token": token}}],
            "contexts": [{"name": "agent", "context": {"cluster": "agent", "user": "agent"}}],
            "current-context": "agent",
        });
        serde_json::to_string_pretty(&config).unwrap_or_default()
    }

    /// Waits until `look` finds something; every change of secrets, accounts and machines is a reason to look.
    async fn wait<T>(&self, deadline: Instant, look: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            if let Some(found) = look() {
                return Some(found);
            }
            if Instant::now() >= deadline {
                return None;
            }
            // A cache has no "next change" to wait for without leaving a subscriber behind; registration is
            // rare and short, so a look every 50 ms costs less than that.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// When the machine's server was there: the token's clock starts then, however long the server took.
fn start_of(machine: &Machine) -> Option<Timestamp> {
    let conditions = &machine.status.as_ref()?.conditions;
    let ready = conditions.iter().find(|c| c.type_ == "InfrastructureReady" && c.status == "True")?;
    Some(ready.last_transition_time.0)
}

enum Identity {
    Machine(Arc<Machine>),
    Unknown,
    /// Known, but the token is no longer good.
    Expired,
}
