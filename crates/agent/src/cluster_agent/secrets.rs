//! Reads from the Secrets of the downstream cluster who manages it. Pure.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use drover_plan::AGENT_TUNNEL;
use serde::Deserialize;

use crate::http::Url;

/// The namespace of the cluster agent.
pub(super) const NAMESPACE: &str = "cattle-system";
/// The account that the management plane uses in the cluster.
pub(super) const ACCOUNT: &str = "cattle";
/// The Secret with that account's token. The token does not expire, so that a new registration changes nothing.
pub(super) const TOKEN_SECRET: &str = "cattle-token";
/// The type of such a Secret.
pub(super) const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// The annotation with the name of its account.
pub(super) const ACCOUNT_ANNOTATION: &str = "kubernetes.io/service-account.name";
const CREDENTIALS: &str = "cattle-credentials-";

/// A list of Secrets, with only the fields that are needed.
#[derive(Default, Deserialize)]
pub(super) struct List {
    /// Metadata of the list.
    #[serde(default)]
    pub(super) metadata: ListMeta,
    /// The Secrets. The original writes `null` for an empty list.
    #[serde(default)]
    pub(super) items: Option<Vec<Secret>>,
}

/// The revision to watch from.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    /// The revision.
    pub(super) resource_version: String,
}

/// One Secret.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Secret {
    metadata: Meta,
    #[serde(rename = "type")]
    kind: String,
    data: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    // RFC 3339 in UTC, which can be compared as text.
    creation_timestamp: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
}

/// The server to register with, and the credential.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The URL of the management plane.
    pub(super) url: Url,
    /// The cluster's registration token.
    pub(super) token: String,
}

/// The next step of the registration.
pub(super) enum Step {
    /// No manager has registered with this cluster.
    AwaitCredentials,
    /// The account's token Secret must be created.
    MakeToken,
    /// It exists, but does not contain a token yet.
    AwaitToken,
    /// A Secret with that name exists, but is not a token of the account.
    ForeignToken,
    /// Everything is known.
    Register {
        /// The server and credential.
        credentials: Credentials,
        /// The token of the account.
        account_token: String,
    },
}

/// Decides the next step from the Secrets in the namespace.
pub(super) fn judge(secrets: &[Secret]) -> Step {
    let Some(credentials) = newest_credentials(secrets) else { return Step::AwaitCredentials };
    let Some(secret) = secrets.iter().find(|secret| secret.metadata.name == TOKEN_SECRET) else {
        return Step::MakeToken;
    };
    let account = secret.metadata.annotations.as_ref().and_then(|all| all.get(ACCOUNT_ANNOTATION));
    if secret.kind != TOKEN_TYPE || account.is_none_or(|account| account != ACCOUNT) {
        return Step::ForeignToken;
    }
    match secret.text("token") {
        Some(account_token) => Step::Register { credentials, account_token },
        None => Step::AwaitToken,
    }
}

/// The newest valid one: a rotation adds a Secret before it removes the old one.
fn newest_credentials(secrets: &[Secret]) -> Option<Credentials> {
    let of = |secret: &Secret| {
        let url = Url::parse(&secret.text("url")?).ok().filter(|url| url.https)?;
        Some(Credentials { url, token: secret.text("token")? })
    };
    secrets
        .iter()
        .filter(|secret| secret.metadata.name.starts_with(CREDENTIALS) && secret.asks_for_tunnel())
        .filter_map(|secret| Some((secret, of(secret)?)))
        // The name decides if two were created within the same second, so that every node selects the same one.
        .max_by_key(|(secret, _)| (&secret.metadata.creation_timestamp, &secret.metadata.name))
        .map(|(_, credentials)| credentials)
}

impl Secret {
    fn asks_for_tunnel(&self) -> bool {
        let asked = self.metadata.annotations.as_ref().and_then(|all| all.get(AGENT_TUNNEL));
        asked.is_some_and(|value| value == "true")
    }

    fn text(&self, key: &str) -> Option<String> {
        let bytes = STANDARD.decode(self.data.as_ref()?.get(key)?).ok()?;
        let text = String::from_utf8(bytes).ok()?.trim().to_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn list(items: Value) -> Vec<Secret> {
        let list: List = serde_json::from_value(json!({"metadata": {}, "items": items})).unwrap();
        list.items.unwrap_or_default()
    }

    fn credentials(name: &str, created: Value, url: &str, token: &str) -> Value {
        json!({
            "metadata": {"name": name, "creationTimestamp": created, "annotations": {AGENT_TUNNEL: "true"}},
            "type": "Opaque",
            "data": {"url": STANDARD.encode(url), "token": STANDARD.encode(token)},
        })
    }

    fn chosen(items: Value) -> Option<(String, String)> {
        newest_credentials(&list(items)).map(|found| (found.url.authority(), found.token))
    }

    #[test]
    fn the_newest_valid_credentials_are_used() {
        let old = credentials("cattle-credentials-z", json!("2026-01-01T00:00:00Z"), "https://m", "old");
        let new =
            credentials("cattle-credentials-a", json!("2026-01-02T00:00:00Z"), "https://m:8443/x", "new\n");
        let twin = credentials("cattle-credentials-b", json!("2026-01-02T00:00:00Z"), "https://m", "twin");
        let undated = credentials("cattle-credentials-y", json!(null), "https://m", "undated");
        let other = credentials("other", json!("2027-01-01T00:00:00Z"), "https://m", "other");
        let plain =
            credentials("cattle-credentials-x", json!("2027-01-01T00:00:00Z"), "http://m", "in the clear");
        let empty = credentials("cattle-credentials-x", json!("2027-01-01T00:00:00Z"), "https://m", "");
        let nothing = json!({"metadata": {"name": "cattle-credentials-w"}});
        assert_eq!(chosen(json!([old, new])), Some(("m:8443".into(), "new".into())));
        assert_eq!(chosen(json!([twin, new])), Some(("m".into(), "twin".into())));
        assert_eq!(chosen(json!([new, twin, undated])), Some(("m".into(), "twin".into())));
        assert_eq!(chosen(json!([old, other, plain, empty, nothing])), Some(("m".into(), "old".into())));
        assert_eq!(chosen(json!([other, plain, empty, nothing])), None);
        let mut ranchers = new.clone();
        ranchers["metadata"]["annotations"] = json!({});
        assert_eq!(chosen(json!([ranchers])), None, "another agent's tunnel");
        assert_eq!(chosen(json!([ranchers, old])), Some(("m".into(), "old".into())));
        assert_eq!(chosen(json!(null)), None);
    }

    #[test]
    fn the_token_is_created_awaited_or_used() {
        let known = credentials("cattle-credentials-a", json!("2026-01-01T00:00:00Z"), "https://m", "t");
        let token = |kind: &str, account: &str, data: Value| {
            json!({
                "metadata": {"name": TOKEN_SECRET, "annotations": {ACCOUNT_ANNOTATION: account}},
                "type": kind, "data": data,
            })
        };
        let full = json!({"token": STANDARD.encode("jwt")});
        let step = |items: Value| judge(&list(items));
        assert!(matches!(step(json!([token(TOKEN_TYPE, ACCOUNT, full.clone())])), Step::AwaitCredentials));
        assert!(matches!(step(json!([known])), Step::MakeToken));
        assert!(matches!(step(json!([known, token(TOKEN_TYPE, ACCOUNT, json!(null))])), Step::AwaitToken));
        assert!(matches!(step(json!([known, token("Opaque", ACCOUNT, full.clone())])), Step::ForeignToken));
        assert!(matches!(step(json!([known, token(TOKEN_TYPE, "x", full.clone())])), Step::ForeignToken));
        let Step::Register { account_token, .. } = step(json!([known, token(TOKEN_TYPE, ACCOUNT, full)]))
        else {
            panic!("everything is known");
        };
        assert_eq!(account_token, "jwt");
    }
}
