//! Whose token a call brings.

use std::sync::Arc;

use drover_api::capi::v1beta2::Machine;
use drover_runtime::{Error, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::bootstrap::objects::service_account_token;
use crate::bootstrap::script::registration_token;
use crate::bootstrap::token::{Times, is_valid};
use crate::controlplane::observe::text;
use crate::keys::{annotations, labels};
use crate::owner::owner_name;
use crate::plansecret::edit::rfc3339;
use crate::registration::connect::{Connect, NOTE_LIMIT};
use crate::registration::machines::machine_of_account;
use crate::store::Store;

/// Index of token secrets by what a machine presents.
const BY_BOOTSTRAP_TOKEN: &str = "provisioning/bootstrap-token";
/// Index of registration token secrets by their tokens.
const BY_REGISTRATION_TOKEN: &str = "provisioning/registration-token";
const REGISTRATION_SECRET_PREFIX: &str = "crt-token-";

/// Whose token it is.
pub(super) enum Found {
    /// Of a machine that Drover made, and the Secret with its token.
    Bootstrap(Arc<Secret>, Arc<Machine>),
    /// Of a cluster, for servers that people bring.
    Registration(Registration),
    Nothing,
}

/// A registration token.
pub(super) struct Registration {
    pub secret: Arc<Secret>,
    /// Name of the management cluster.
    pub management: String,
    /// Name of the ClusterRegistrationToken.
    pub token: String,
}

/// Declares the indexes that lookups need.
pub(super) fn index(store: &Store) {
    store.secrets.index(BY_BOOTSTRAP_TOKEN, |secret| {
        let is_ours = secret.annotations().get(annotations::BOOTSTRAP_TOKEN).is_some_and(|v| v == "true");
        service_account_token(secret)
            .filter(|_| is_ours)
            .map(|token| registration_token(&token))
            .into_iter()
            .collect()
    });
    store.secrets.index(BY_REGISTRATION_TOKEN, |secret| {
        let is_ours = secret.name_any().starts_with(REGISTRATION_SECRET_PREFIX)
            && owner_name(&secret.metadata, "management.cattle.io", "ClusterRegistrationToken").is_some();
        let values = ["token", "previousToken"].into_iter().filter_map(|key| text(secret, key));
        // By digest, so that the duration of a lookup reveals nothing about a token.
        values.filter(|_| is_ours).map(|token| registration_token(&token)).collect()
    });
}

impl Connect {
    /// Looks a token up. Reads caches only.
    pub(super) fn identify(&self, bearer: &str) -> Found {
        if let Some((secret, machine)) = self.by_bootstrap_token(bearer) {
            return Found::Bootstrap(secret, machine);
        }
        self.registration(bearer).map_or(Found::Nothing, Found::Registration)
    }

    /// A machine that Drover made presents the hash of its bootstrap account's token.
    fn by_bootstrap_token(&self, bearer: &str) -> Option<(Arc<Secret>, Arc<Machine>)> {
        let store = &self.context.store;
        let secret = store.secrets.by_index(BY_BOOTSTRAP_TOKEN, bearer).into_iter().next()?;
        let namespace = secret.namespace().unwrap_or_default();
        let account_name =
            secret.annotations().get("kubernetes.io/service-account.name").cloned().unwrap_or_default();
        let account = store.accounts.get(&ObjectKey::new(&namespace, &account_name));
        let account = account.filter(|account| {
            account
                .labels()
                .get(labels::SERVICE_ACCOUNT_ROLE)
                .is_some_and(|role| role == labels::ROLE_BOOTSTRAP)
                && secret.annotations().get("kubernetes.io/service-account.uid")
                    == account.metadata.uid.as_ref()
        })?;
        let machine = machine_of_account(store, &account)?;
        Some((secret, machine))
    }

    /// Checks and notes the use of a bootstrap token.
    pub(super) async fn accept(&self, secret: &Secret, machine: &Machine) -> Result<bool, Error> {
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
        self.writer.merge::<Secret>(&key, patch).await?;
        // The next call is judged by the cache: it must not find the token as it was before this one.
        let noted = || {
            let secret = self.context.store.secrets.get(&key)?;
            (secret.annotations().get(note) == Some(&value)).then_some(())
        };
        self.waiters.wait(&key, Instant::now() + NOTE_LIMIT, noted).await;
        Ok(valid)
    }

    /// A server that a person brought presents a registration token of its cluster.
    fn registration(&self, bearer: &str) -> Option<Registration> {
        let store = &self.context.store;
        let secret =
            store.secrets.by_index(BY_REGISTRATION_TOKEN, &registration_token(bearer)).into_iter().next()?;
        let management = secret.namespace().unwrap_or_default();
        let token = secret.name_any().strip_prefix(REGISTRATION_SECRET_PREFIX)?.to_owned();
        let twin = store.twins.get(&ObjectKey::cluster(&management))?;
        let ours = twin.annotations().get(annotations::ADMINISTRATED).is_some_and(|value| value == "true");
        ours.then_some(Registration { secret, management, token })
    }
}

/// When the machine's server was there: the token's clock starts then, however long the server took.
fn start_of(machine: &Machine) -> Option<Timestamp> {
    let conditions = &machine.status.as_ref()?.conditions;
    let ready = conditions.iter().find(|c| c.type_ == "InfrastructureReady" && c.status == "True")?;
    Some(ready.last_transition_time.0)
}
