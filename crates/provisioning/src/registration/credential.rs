//! The one credential a machine gets: the token of the account that may touch its plan secret, in a kubeconfig.

use drover_api::capi::v1beta2::Machine;
use drover_plan::{PlanState, keys};
use drover_runtime::{Error, ObjectKey};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::bootstrap::objects;
use crate::bootstrap::objects::service_account_token;
use crate::bootstrap::script::registration_token;
use crate::keys::{annotations, labels};
use crate::registration::connect::{Call, Connect};
use crate::registration::machines::machine_of_account;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// An answer that was lost can be asked for again this long after the Machine was made.
const LOST_ANSWER: SignedDuration = SignedDuration::from_mins(2);

/// Where a machine's agent reads its plan, and with what.
pub(super) struct Credential {
    pub namespace: String,
    pub secret: String,
    pub token: String,
}

impl Connect {
    /// The plan account's credential; its token is made if it is not there yet.
    pub(super) async fn credential(
        &self,
        machine: &Machine,
        deadline: Instant,
    ) -> Result<Option<Credential>, Error> {
        let store = &self.context.store;
        let namespace = machine.namespace().unwrap_or_default();
        let Some(bootstrap) = machine.spec.bootstrap.config_ref.as_ref() else { return Ok(None) };
        let key = ObjectKey::new(&namespace, objects::plan_name(&bootstrap.name));
        let Some(account) = self.waiters.wait(&key, deadline, || store.accounts.get(&key)).await else {
            return Ok(None);
        };
        let owned = machine_of_account(store, &account)
            .is_some_and(|owner| owner.metadata.uid == machine.metadata.uid);
        let is_plan =
            account.labels().get(labels::SERVICE_ACCOUNT_ROLE).is_some_and(|role| role == labels::ROLE_PLAN);
        if !owned || !is_plan {
            return Ok(None);
        }
        let uid = account.metadata.uid.clone().unwrap_or_default();
        let desired = objects::token_secret(&namespace, &key.name, &uid, false);
        let secret = ObjectKey::of(&desired);
        if store.secrets.get(&secret).is_none() {
            self.writer.create(&desired).await?;
        }
        let look = || service_account_token(store.secrets.get(&secret)?.as_ref());
        let token = self.waiters.wait(&secret, deadline, look).await;
        Ok(token.map(|token| Credential {
            namespace,
            secret: account.labels().get(labels::PLAN_SECRET_NAME).cloned().unwrap_or_default(),
            token,
        }))
    }

    /// Whether the agent of a machine has ever written to its plan secret.
    pub(super) fn has_reported(&self, machine: &Machine) -> bool {
        let Some(bootstrap) = machine.spec.bootstrap.config_ref.as_ref() else { return false };
        let key =
            ObjectKey::new(machine.namespace().unwrap_or_default(), objects::plan_name(&bootstrap.name));
        self.context.store.secrets.get(&key).is_some_and(|secret| is_written(&secret))
    }

    pub(super) fn kubeconfig(&self, host: &str, token: &str) -> String {
        let settings = self.context.settings.now();
        let server = match settings.server_url.as_str() {
            "" => format!("https://{host}"),
            url => url.to_owned(),
        };
        let mut cluster = json!({"server": server});
        if !settings.cacerts.trim().is_empty() {
            let pem = format!("{}\n", settings.cacerts.trim());
            cluster["certificate-authority-data"] = json!(BASE64_STANDARD.encode(pem));
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
}

/// Whether a call has the credential of its machine. Digests are compared, so that the duration reveals nothing.
pub(super) fn is_proof(call: &Call, credential: &Credential) -> bool {
    call.machine_token()
        .is_some_and(|token| registration_token(token) == registration_token(&credential.token))
}

/// Whether this may be the machine that asks again because the answer was lost: it has the token that the Machine was
/// made with, and nobody has used the credential yet.
pub(super) fn is_repeat(machine: &Machine, token: &str, has_reported: bool, now: Timestamp) -> bool {
    let same = machine.annotations().get(annotations::REGISTRATION_TOKEN).is_some_and(|name| name == token);
    let made = machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    same && !has_reported && now.duration_since(made) < LOST_ANSWER
}

/// The server writes one of the agent's keys too: a new plan is pending until the agent takes it up.
fn is_written(secret: &Secret) -> bool {
    let by_agent = |key: &str, value: &[u8]| match key {
        keys::PLAN_STATE => value != PlanState::Pending.as_str().as_bytes(),
        _ => keys::AGENT_OWNED.contains(&key),
    };
    secret.data.iter().flatten().any(|(key, value)| !value.0.is_empty() && by_agent(key, &value.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn an_answer_is_repeated_for_the_same_token_soon_and_before_the_agent_runs() {
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"drover.io/registration-token": "mine"},
            },
            "spec": {
                "clusterName": "demo", "bootstrap": {},
                "infrastructureRef": {"apiGroup": "rke.cattle.io", "kind": "CustomMachine", "name": "m"},
            },
        }))
        .unwrap();
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        assert!(is_repeat(&machine, "mine", false, at("2026-01-01T00:01:59Z")));
        assert!(!is_repeat(&machine, "mine", false, at("2026-01-01T00:02:00Z")));
        assert!(!is_repeat(&machine, "mine", true, at("2026-01-01T00:00:01Z")));
        assert!(!is_repeat(&machine, "other", false, at("2026-01-01T00:00:01Z")));
        assert!(!is_repeat(&Machine::default(), "mine", false, at("2026-01-01T00:00:01Z")), "of a pool");
    }

    #[test]
    fn a_plan_is_no_report() {
        let secret = |key: &str, value: &str| Secret {
            data: Some([(key.to_owned(), ByteString(value.into()))].into()),
            ..Secret::default()
        };
        assert!(!is_written(&secret("plan", "{}")));
        assert!(!is_written(&secret("plan-state", "pending")));
        assert!(is_written(&secret("plan-state", "in-progress")));
        assert!(!is_written(&secret("probe-statuses", "")));
        assert!(is_written(&secret("probe-statuses", "{}")));
    }
}
