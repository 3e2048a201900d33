//! Bootstrap tokens: `<id>.<secret>`, stored in the Secret `kube-system/bootstrap-token-<id>`.

use crate::identity::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The namespace of the Secrets.
pub(crate) const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

/// The relevant fields of a Secret.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TokenSecret {
    #[serde(rename = "type")]
    kind: String,
    data: BTreeMap<String, String>,
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    deletion_timestamp: Option<String>,
}

/// Splits a token; `None` if it has another form.
pub(crate) fn parse(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain =
        |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    (plain(id, 6) && plain(secret, 16)).then_some((id, secret))
}

/// Name of the Secret.
pub(crate) fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// The user of the token, if the Secret allows it.
pub(crate) fn user(id: &str, secret: &str, stored: &TokenSecret, now: Timestamp) -> Option<UserInfo> {
    let get = |key: &str| {
        let bytes = STANDARD.decode(stored.data.get(key)?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let live = stored.metadata.deletion_timestamp.is_none()
        && stored.kind == SECRET_TYPE
        && stored.metadata.name == secret_name(id);
    let genuine = get("token-id")? == id && same(get("token-secret")?.as_bytes(), secret.as_bytes());
    let current = match get("expiration") {
        None => true,
        Some(text) => text.parse::<Timestamp>().is_ok_and(|end| now < end),
    };
    if !(live && genuine && current && get("usage-bootstrap-authentication").as_deref() == Some("true")) {
        return None;
    }
    let mut groups = vec![GROUP.to_owned()];
    for group in
        get("auth-extra-groups").unwrap_or_default().split(',').map(str::trim).filter(|g| !g.is_empty())
    {
        // Without the required prefix, anyone who can write such a Secret could gain any group.
        if !group.starts_with("system:bootstrappers:") {
            return None;
        }
        groups.push(group.to_owned());
    }
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

/// Compares in constant time, so that the time does not reveal the position of a difference.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(change: &[(&str, &str)]) -> TokenSecret {
        let mut data = BTreeMap::from([
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2030-01-01T00:00:00Z"),
            ("auth-extra-groups", "system:bootstrappers:workers"),
        ]);
        data.extend(change.iter().copied());
        let data: BTreeMap<&str, String> = data.into_iter().map(|(k, v)| (k, STANDARD.encode(v))).collect();
        serde_json::from_value(json!({
            "type": SECRET_TYPE, "metadata": {"name": "bootstrap-token-abcdef"}, "data": data
        }))
        .unwrap()
    }

    fn authenticate(stored: &TokenSecret) -> Option<UserInfo> {
        user("abcdef", "0123456789abcdef", stored, "2029-01-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn tokens_must_have_the_right_form() {
        assert_eq!(parse("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for bad in
            ["", "abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcde", "abcdef.0123456789abcdef0"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_is_valid_only_as_its_secret_says() {
        let user = authenticate(&secret(&[])).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(user.groups, ["system:bootstrappers", "system:bootstrappers:workers"]);
        for bad in [
            ("token-secret", "0123456789abcdee"),
            ("token-id", "abcdee"),
            ("expiration", "2028-01-01T00:00:00Z"),
            ("expiration", "junk"),
            ("usage-bootstrap-authentication", "false"),
            ("auth-extra-groups", "system:masters"),
        ] {
            assert!(authenticate(&secret(&[bad])).is_none(), "{bad:?}");
        }
        assert!(authenticate(&TokenSecret { kind: "Opaque".into(), ..secret(&[]) }).is_none());
    }
}
