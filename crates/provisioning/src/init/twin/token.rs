//! Registration tokens: the secret behind a ClusterRegistrationToken, its terms, and the commands that use it.

use std::collections::BTreeMap;

use drover_api::management::v3::{ClusterRegistrationToken, ClusterRegistrationTokenStatus};
use drover_runtime::{Error, Next, ObjectKey, Reconciler};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};

use super::DEFAULT_TOKEN;
use crate::context::Context;
use crate::controlplane::observe::text;
use crate::keys::{annotations, labels};
use crate::owner::controller_reference;
use crate::plansecret::edit::rfc3339;
use crate::registration::command;
use crate::registration::terms::{self, EXPIRES_AT};
use crate::store::{Writer, status_of};
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// An expired token is kept this long, so that a machine that registers late gets the error that the token has expired,
/// not that it is unknown.
const KEPT_EXPIRED: SignedDuration = SignedDuration::from_hours(24);

/// Name of the secret that holds a token.
pub fn secret_name(token: &str) -> String {
    format!("crt-token-{token}")
}

/// Reconciles one ClusterRegistrationToken.
pub struct Tokens {
    context: Context,
    writer: Writer,
}

impl Tokens {
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), writer: Writer::new(&context.store, "init", "token") }
    }
}

impl Reconciler for Tokens {
    const NAME: &'static str = "registrationtoken";

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, Error> {
        let store = &self.context.store;
        let Some(token) = store.tokens.get(&key) else { return Ok(Next::EVENT) };
        if token.metadata.deletion_timestamp.is_some() {
            return Ok(Next::EVENT);
        }
        let expires = expiry(&token);
        let due = removal(&key.name, expires);
        if due.is_some_and(|due| self.context.now() >= due) {
            tracing::info!(token = %key, "an expired registration token is removed");
            self.writer.delete::<ClusterRegistrationToken>(&key).await?;
            return Ok(Next::EVENT);
        }
        let (notes, secret) = (scope(&token), key.sibling(secret_name(&key.name)));
        let mut live = store.secrets.get(&secret).map(|secret| (*secret).clone());
        if live.is_none() {
            // The cache does not show what an earlier version made without the label.
            live = self.writer.get(&secret).await?;
        }
        match live {
            None => {
                // Made once with a random value, never applied again: a second pass must not change the token.
                let mut data = vec![("token".to_owned(), ByteString(self.context.token().into_bytes()))];
                data.extend(expires.map(|at| (EXPIRES_AT.to_owned(), ByteString(rfc3339(at).into_bytes()))));
                let desired = Secret {
                    metadata: ObjectMeta {
                        namespace: Some(key.namespace.clone()),
                        name: Some(secret.name.clone()),
                        owner_references: Some(vec![controller_reference(token.as_ref())]),
                        annotations: Some(notes),
                        labels: Some([(labels::REGISTRATION_TOKEN.to_owned(), "true".to_owned())].into()),
                        ..ObjectMeta::default()
                    },
                    type_: Some("Opaque".to_owned()),
                    data: Some(data.into_iter().collect()),
                    ..Secret::default()
                };
                self.writer.create(&desired).await?;
            }
            Some(live) => {
                if let Some(patch) = correction(&live, &notes, expires) {
                    self.writer.merge::<Secret>(&secret, patch).await?;
                }
            }
        }
        let status = ClusterRegistrationTokenStatus {
            token_secret_name: secret.name,
            expires_at: expires.map(rfc3339).unwrap_or_default(),
            ..command::commands(&self.context.settings.now(), &key.namespace)
        };
        self.writer.apply_status(&status_of::<ClusterRegistrationToken>(&key, status)).await?;
        Ok(self.context.next(due))
    }
}

fn expiry(token: &ClusterRegistrationToken) -> Option<Timestamp> {
    terms::expires_at(token.metadata.creation_timestamp.as_ref()?.0, token.spec.ttl)
}

/// When the object goes. Every cluster has a default token: that one stays, expired or not.
fn removal(name: &str, expires: Option<Timestamp>) -> Option<Timestamp> {
    let expires = expires.filter(|_| name != DEFAULT_TOKEN)?;
    Some(expires.checked_add(KEPT_EXPIRED).unwrap_or(Timestamp::MAX))
}

/// The annotations that bind the token, as they stand: what cannot be read is refused where the token is used.
fn scope(token: &ClusterRegistrationToken) -> BTreeMap<String, String> {
    let keys = [annotations::REGISTRATION_ROLES, annotations::REGISTRATION_LIMIT];
    let notes = token.annotations();
    keys.iter().filter_map(|key| Some(((*key).to_owned(), notes.get(*key)?.clone()))).collect()
}

/// What must change in the secret of a token whose terms were changed.
fn correction(
    secret: &Secret,
    notes: &BTreeMap<String, String>,
    expires: Option<Timestamp>,
) -> Option<Value> {
    let mut wrong = Map::new();
    for key in [annotations::REGISTRATION_ROLES, annotations::REGISTRATION_LIMIT] {
        if secret.annotations().get(key) != notes.get(key) {
            wrong.insert(key.to_owned(), json!(notes.get(key)));
        }
    }
    let expires = expires.map(rfc3339);
    let late = text(secret, EXPIRES_AT) != expires;
    let marked = secret.labels().contains_key(labels::REGISTRATION_TOKEN);
    if wrong.is_empty() && !late && marked {
        return None;
    }
    let mut patch = json!({"metadata": {"uid": secret.metadata.uid, "annotations": wrong}});
    if !marked {
        patch["metadata"]["labels"] = json!({labels::REGISTRATION_TOKEN: "true"});
    }
    if late {
        patch["data"] = json!({EXPIRES_AT: expires.map(|text| BASE64_STANDARD.encode(text))});
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_follows_the_terms_of_its_token() {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {
                "uid": "u", "labels": {"drover.io/registration-token": "true"},
                "annotations": {"drover.io/registration-roles": "worker", "other": "stays"},
            },
            "data": {"token": BASE64_STANDARD.encode("t"), "expiresAt": BASE64_STANDARD.encode("2026-01-01T00:00:00Z")},
        }))
        .unwrap();
        let roles = |list: &str| [("drover.io/registration-roles".to_owned(), list.to_owned())].into();
        let until: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(correction(&secret, &roles("worker"), Some(until)), None);
        assert_eq!(
            correction(&secret, &BTreeMap::new(), None),
            Some(json!({
                "metadata": {"uid": "u", "annotations": {"drover.io/registration-roles": null}},
                "data": {"expiresAt": null},
            }))
        );
        let narrowed = correction(&secret, &roles("etcd"), Some(until)).unwrap();
        assert_eq!(narrowed["metadata"]["annotations"], json!({"drover.io/registration-roles": "etcd"}));
        assert_eq!(narrowed.get("data"), None);
        let earlier = Secret { metadata: ObjectMeta { labels: None, ..secret.metadata.clone() }, ..secret };
        let marked = correction(&earlier, &roles("worker"), Some(until)).unwrap();
        assert_eq!(marked["metadata"]["labels"], json!({"drover.io/registration-token": "true"}));
    }

    #[test]
    fn an_expired_token_goes_a_day_later_and_the_default_token_never() {
        let until: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(removal("mine", Some(until)), Some("2026-01-02T00:00:00Z".parse().unwrap()));
        assert_eq!(removal("mine", None), None);
        assert_eq!(removal(DEFAULT_TOKEN, Some(until)), None);
    }
}
