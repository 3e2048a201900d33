//! The claims of a service-account token, and their validation. Form: kubernetes pkg/serviceaccount/claims.go and
//! legacy.go.

use crate::identity::UserInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Issuer of tokens in Secrets.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Claims of a token from TokenRequest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// The audiences.
    #[serde(deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    /// Expiry, seconds.
    pub exp: i64,
    /// Issued at.
    pub iat: i64,
    /// Issuer.
    pub iss: String,
    /// ID of the token.
    #[serde(default)]
    pub jti: String,
    /// The objects that it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Kubernetes,
    /// Not before.
    pub nbf: i64,
    /// `system:serviceaccount:<ns>:<name>`.
    pub sub: String,
}

/// The private claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kubernetes {
    /// Namespace of the ServiceAccount.
    pub namespace: String,
    /// Node, if bound to a node or to a pod on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref>,
    /// Pod, if bound to a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Ref>,
    /// Secret, if bound to a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Ref>,
    /// The ServiceAccount.
    pub serviceaccount: Ref,
}

/// A reference to an object by name and UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    /// Name.
    pub name: String,
    /// UID; a recreated object of the same name has another.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Claims of a token in a Secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LegacyClaims {
    /// [`LEGACY_ISSUER`].
    pub iss: String,
    /// Namespace of the ServiceAccount and the Secret.
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
    /// The Secret with the token.
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret: String,
    /// The ServiceAccount.
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub name: String,
    /// Its UID.
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub uid: String,
    /// `system:serviceaccount:<ns>:<name>`.
    pub sub: String,
}

impl LegacyClaims {
    /// Claims of the token in this Secret.
    pub fn new(namespace: &str, secret: &str, name: &str, uid: &str) -> Self {
        Self {
            iss: LEGACY_ISSUER.into(),
            namespace: namespace.into(),
            secret: secret.into(),
            name: name.into(),
            uid: uid.into(),
            sub: user_name(namespace, name),
        }
    }
}

impl Claims {
    /// Validates the claims themselves: issuer, subject, time, audience. Returns the matching audiences.
    pub fn validate(
        &self,
        issuer: &str,
        audiences: &[String],
        now: i64,
    ) -> Result<Vec<String>, &'static str> {
        let k = &self.kubernetes;
        if self.iss != issuer {
            return Err("the token has another issuer");
        }
        if self.sub != user_name(&k.namespace, &k.serviceaccount.name) {
            return Err("sub does not name the service account");
        }
        if now >= self.exp {
            return Err("token has expired");
        }
        // The same process issues and validates; a minute covers a clock that was set back.
        if now + 60 < self.nbf {
            return Err("token is not valid yet");
        }
        let fit: Vec<String> = audiences.iter().filter(|a| self.aud.contains(a)).cloned().collect();
        if fit.is_empty() { Err("token audiences are invalid for this server") } else { Ok(fit) }
    }

    /// The user of the token.
    pub fn user(&self) -> UserInfo {
        let k = &self.kubernetes;
        let mut extra = BTreeMap::new();
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
            }
        };
        if let Some(pod) = &k.pod {
            put("pod-name", &pod.name);
            put("pod-uid", &pod.uid);
        }
        if let Some(node) = &k.node {
            put("node-name", &node.name);
            put("node-uid", &node.uid);
        }
        if !self.jti.is_empty() {
            extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", self.jti)]);
        }
        UserInfo {
            extra,
            ..service_account_user(&k.namespace, &k.serviceaccount.name, &k.serviceaccount.uid)
        }
    }
}

/// `system:serviceaccount:<ns>:<name>`.
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups of every ServiceAccount of the namespace.
pub fn groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")]
}

/// The ServiceAccount as a user.
pub fn service_account_user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    UserInfo {
        name: user_name(namespace, name),
        uid: uid.to_owned(),
        groups: groups(namespace),
        ..UserInfo::default()
    }
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Either::deserialize(d)? {
        Either::One(one) => vec![one],
        Either::Many(many) => many,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            aud: vec!["api".into()],
            exp: 100,
            iat: 0,
            nbf: 0,
            iss: "us".into(),
            jti: "j".into(),
            sub: "system:serviceaccount:ns:sa".into(),
            kubernetes: Kubernetes {
                namespace: "ns".into(),
                serviceaccount: Ref { name: "sa".into(), uid: "u".into() },
                pod: Some(Ref { name: "p".into(), uid: "pu".into() }),
                ..Kubernetes::default()
            },
        }
    }

    #[test]
    fn claims_are_valid_only_in_time_and_for_their_audience() {
        let aud = ["api".to_owned(), "other".to_owned()];
        assert_eq!(claims().validate("us", &aud, 99), Ok(vec!["api".to_owned()]));
        assert_eq!(claims().validate("us", &aud, 100), Err("token has expired"));
        assert!(claims().validate("them", &aud, 50).is_err());
        assert!(claims().validate("us", &["other".to_owned()], 50).is_err());
        assert!(Claims { nbf: 500, exp: 900, ..claims() }.validate("us", &aud, 50).is_err());
        assert!(
            Claims { sub: "system:serviceaccount:ns:admin".into(), ..claims() }
                .validate("us", &aud, 50)
                .is_err()
        );
    }

    #[test]
    fn the_user_has_groups_and_origin() {
        let user = claims().user();
        assert_eq!(user.name, "system:serviceaccount:ns:sa");
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
        assert_eq!(user.extra[CREDENTIAL_ID], ["JTI=j"]);
        assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["p"]);
    }

    #[test]
    fn the_serialized_form_matches_upstream() {
        let value = serde_json::to_value(claims()).unwrap();
        assert_eq!(value["kubernetes.io"]["serviceaccount"]["uid"], "u");
        assert!(value["kubernetes.io"].get("secret").is_none());
        let one: Claims = serde_json::from_value({
            let mut v = value;
            v["aud"] = "api".into();
            v
        })
        .unwrap();
        assert_eq!(one, claims());
    }
}
