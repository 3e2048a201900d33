//! Credentials by index: registration tokens of clusters, and the tokens in cluster kubeconfigs.

use drover_api::annotations::drover::REGISTRATION_ROLES;
use drover_api::labels::capi::CLUSTER_NAME;
use drover_api::management::v3::ClusterRegistrationToken;
use drover_apiserver::identity::{Authenticator, UserInfo};
use drover_apiserver::status::Status;
use drover_runtime::{Cache, ObjectKey};
use futures::future::BoxFuture;
use http::request::Parts;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

/// Prefix of the Secrets that contain a ClusterRegistrationToken's value.
pub const REGISTRATION_SECRET_PREFIX: &str = "crt-token-";
/// Suffix of the Secrets that contain a cluster's kubeconfig.
pub const KUBECONFIG_SECRET_SUFFIX: &str = "-kubeconfig";
/// Prefix of the group that owns one cluster, and has no other permissions, through the proxy.
pub const OWNER_GROUP_PREFIX: &str = "drover:cluster-owner:";

const BY_REGISTRATION: &str = "access/registration-token";
const BY_KUBECONFIG: &str = "access/kubeconfig-token";

/// All tokens in Secrets of the management plane. Lookups are by digest, so that neither the index nor the time of a
/// lookup reveals a token.
#[derive(Clone)]
pub struct Tokens {
    secrets: Cache<Secret>,
    registrations: Option<Cache<ClusterRegistrationToken>>,
}

/// What a registration token permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The id of the cluster.
    pub cluster: String,
    /// It only permits machines of certain roles to join, and is not a credential of the cluster itself.
    pub scoped: bool,
}

impl Tokens {
    pub fn new(secrets: Cache<Secret>) -> Self {
        secrets.index(BY_REGISTRATION, |secret| {
            let is_ours = secret.name_any().starts_with(REGISTRATION_SECRET_PREFIX)
                && secret.owner_references().iter().any(|owner| owner.kind == "ClusterRegistrationToken");
            let values = ["token", "previousToken"].map(|key| text(secret, key));
            values.into_iter().flatten().filter(|v| is_ours && !v.is_empty()).map(|v| digest(&v)).collect()
        });
        secrets.index(BY_KUBECONFIG, |secret| {
            let is_ours = secret.name_any().ends_with(KUBECONFIG_SECRET_SUFFIX)
                && secret.labels().contains_key(CLUSTER_NAME)
                && secret
                    .owner_references()
                    .iter()
                    .any(|owner| owner.api_version.starts_with("provisioning.cattle.io/"));
            text(secret, "token")
                .filter(|v| is_ours && !v.is_empty())
                .map(|v| digest(&v))
                .into_iter()
                .collect()
        });
        Self { secrets, registrations: None }
    }

    /// Also reads the limits in the ClusterRegistrationTokens themselves.
    #[must_use]
    pub fn with_registrations(mut self, registrations: Cache<ClusterRegistrationToken>) -> Self {
        self.registrations = Some(registrations);
        self
    }

    /// The registration of a token.
    pub fn registration(&self, token: &str) -> Option<Registration> {
        let found = self.secrets.by_index(BY_REGISTRATION, &digest(token));
        let secret = found.first()?;
        if is_expired(secret, token, Timestamp::now()) {
            return None;
        }
        let cluster = secret.namespace()?;
        let owner = secret.name_any();
        let owner = owner.strip_prefix(REGISTRATION_SECRET_PREFIX).unwrap_or_default();
        let object = self.registrations.as_ref().and_then(|all| all.get(&ObjectKey::new(&cluster, owner)));
        let scoped = secret.annotations().contains_key(REGISTRATION_ROLES)
            || object.is_some_and(|object| object.annotations().contains_key(REGISTRATION_ROLES));
        Some(Registration { cluster, scoped })
    }

    /// Namespace and name of the provisioning Cluster whose kubeconfig contains `token`.
    fn cluster_of_kubeconfig(&self, token: &str) -> Option<(String, String)> {
        let found = self.secrets.by_index(BY_KUBECONFIG, &digest(token));
        let secret = found.first()?;
        Some((secret.namespace()?, secret.labels().get(CLUSTER_NAME)?.clone()))
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

/// Whether a registration token has expired, or the grace period of the previous one. An unreadable time has expired.
fn is_expired(secret: &Secret, token: &str, now: Timestamp) -> bool {
    let current = text(secret, "token").is_some_and(|value| value == token);
    let until = text(secret, if current { "expiresAt" } else { "gracePeriodExpiresAt" });
    until.filter(|until| !until.is_empty()).is_some_and(|until| {
        let until = until.parse::<Timestamp>();
        !until.is_ok_and(|until| now < until)
    })
}

fn digest(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Authenticates the token of a cluster's kubeconfig: a user that owns that cluster and has no other permissions.
pub struct KubeconfigAuthenticator {
    tokens: Tokens,
}

impl KubeconfigAuthenticator {
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens }
    }
}

impl Authenticator for KubeconfigAuthenticator {
    fn authenticate<'a>(&'a self, request: &'a Parts) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        Box::pin(async move {
            let Some(bearer) = bearer(request) else { return Ok(None) };
            // `<user>:<key>`; other tokens are left to other authenticators.
            let Some((user, _)) = bearer.split_once(':').filter(|(_, key)| !key.contains(':')) else {
                return Ok(None);
            };
            let Some((namespace, name)) = self.tokens.cluster_of_kubeconfig(bearer) else {
                return Err(Status::unauthorized());
            };
            let groups =
                vec![format!("{OWNER_GROUP_PREFIX}{namespace}/{name}"), "system:authenticated".to_owned()];
            Ok(Some(UserInfo { name: user.to_owned(), groups, ..UserInfo::default() }))
        })
    }
}

fn bearer(request: &Parts) -> Option<&str> {
    request.headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

    fn secret(namespace: &str, name: &str, owner: (&str, &str), token: &str) -> Secret {
        let owner =
            OwnerReference { api_version: owner.0.into(), kind: owner.1.into(), ..OwnerReference::default() };
        Secret {
            metadata: ObjectMeta {
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                labels: Some([(CLUSTER_NAME.to_owned(), "demo".to_owned())].into()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some([("token".to_owned(), ByteString(token.into()))].into()),
            ..Secret::default()
        }
    }

    const CRT: (&str, &str) = ("management.cattle.io/v3", "ClusterRegistrationToken");
    const PROVISIONING: (&str, &str) = ("provisioning.cattle.io/v1", "Cluster");

    #[test]
    fn a_registration_token_is_valid_only_in_a_secret_that_its_object_owns() {
        let tokens = Tokens::new(Cache::fixed([
            secret("c-m-1", "crt-token-default-token", CRT, "good"),
            secret("c-m-2", "crt-token-forged", ("v1", "ConfigMap"), "forged"),
            secret("c-m-3", "other", CRT, "other"),
        ]));
        assert_eq!(
            tokens.registration("good"),
            Some(Registration { cluster: "c-m-1".into(), scoped: false })
        );
        for token in ["forged", "other", "", "Good"] {
            assert_eq!(tokens.registration(token), None, "{token}");
        }
    }

    #[test]
    fn an_expired_registration_token_is_unknown() {
        let until = |text: &str| {
            let mut secret = secret("c-m-1", "crt-token-mine", CRT, "good");
            let data = secret.data.get_or_insert_default();
            data.insert("expiresAt".into(), ByteString(text.into()));
            Tokens::new(Cache::fixed([secret])).registration("good").map(|found| found.cluster)
        };
        assert_eq!(until("2020-01-01T00:00:00Z"), None);
        assert_eq!(until("soon"), None);
        assert_eq!(until("9999-01-01T00:00:00Z").as_deref(), Some("c-m-1"));
    }

    #[test]
    fn a_registration_token_for_certain_roles_is_marked_by_its_secret_or_its_object() {
        let roles = || Some([(REGISTRATION_ROLES.to_owned(), "worker".to_owned())].into());
        let mut noted = secret("c-m-1", "crt-token-noted", CRT, "noted");
        noted.metadata.annotations = roles();
        let mut object = ClusterRegistrationToken::new("object", Default::default());
        object.metadata.namespace = Some("c-m-1".into());
        object.metadata.annotations = roles();
        let secrets = [
            noted,
            secret("c-m-1", "crt-token-object", CRT, "object"),
            secret("c-m-2", "crt-token-object", CRT, "namesake"),
        ];
        let tokens = Tokens::new(Cache::fixed(secrets)).with_registrations(Cache::fixed([object]));
        let scoped = |token: &str| tokens.registration(token).unwrap().scoped;
        assert!(scoped("noted") && scoped("object") && !scoped("namesake"));
    }

    #[tokio::test]
    async fn a_kubeconfig_token_identifies_its_cluster_and_an_unknown_one_is_rejected() {
        let tokens = Tokens::new(Cache::fixed([secret(
            "fleet-default",
            "demo-kubeconfig",
            PROVISIONING,
            "u-abc:key",
        )]));
        let authenticator = KubeconfigAuthenticator::new(tokens);
        let with = |value: &str| {
            let request = http::Request::builder().header("authorization", value).body(()).unwrap();
            request.into_parts().0
        };
        let user = authenticator.authenticate(&with("Bearer u-abc:key")).await.unwrap().unwrap();
        assert_eq!(user.name, "u-abc");
        assert!(user.in_group("drover:cluster-owner:fleet-default/demo"));
        assert!(!user.in_group("system:masters"));
        assert_eq!(authenticator.authenticate(&with("Bearer u-abc:guess")).await.unwrap_err().code, 401);
        assert_eq!(authenticator.authenticate(&with("Bearer a.jwt.token")).await.unwrap(), None);
        assert_eq!(authenticator.authenticate(&with("Basic dTpw")).await.unwrap(), None);
    }
}
