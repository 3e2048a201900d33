//! Signs and validates service-account tokens.

use super::claims::{Claims, Kubernetes, LEGACY_ISSUER, LegacyClaims, Ref, service_account_user, user_name};
use super::jwt::{self, JwtError, SigningKey};
use crate::auth::bootstrap_token::same;
use crate::clock::Clock;
use crate::identity::UserInfo;
use crate::storage::{Key, Storage, Version};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default issuer of clusters.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Issuer and audiences.
#[derive(Clone, Debug)]
pub struct IssuerOptions {
    /// `iss`, also the base URL of OpenID discovery.
    pub issuer: String,
    /// Audiences of this server; the first one is the default of a TokenRequest.
    pub audiences: Vec<String>,
}

impl Default for IssuerOptions {
    fn default() -> Self {
        Self { issuer: DEFAULT_ISSUER.into(), audiences: vec![DEFAULT_ISSUER.into()] }
    }
}

/// An object that a token is bound to in addition to its ServiceAccount.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// A Secret.
    pub secret: Option<Ref>,
    /// A Pod.
    pub pod: Option<Ref>,
    /// A Node, or the node of the Pod.
    pub node: Option<Ref>,
}

/// The token issuer of a cluster.
pub struct Issuer {
    key: SigningKey,
    options: IssuerOptions,
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
}

impl Issuer {
    /// An issuer with this key.
    pub fn new(
        key_pem: &str,
        options: IssuerOptions,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, JwtError> {
        Ok(Self { key: SigningKey::from_pem(key_pem)?, options, storage, clock })
    }

    /// Issuer and audiences.
    pub fn options(&self) -> &IssuerOptions {
        &self.options
    }

    /// The public key set.
    pub fn jwks(&self) -> Value {
        self.key.jwks()
    }

    /// Issues a token for a ServiceAccount, valid for `seconds` from now. Returns it with its expiry.
    pub fn mint(
        &self,
        namespace: &str,
        account: Ref,
        audiences: &[String],
        seconds: i64,
        binding: Binding,
    ) -> Result<(String, jiff::Timestamp), JwtError> {
        let now = self.clock.now().as_second();
        let exp = now.saturating_add(seconds);
        let claims = Claims {
            aud: audiences.to_vec(),
            exp,
            iat: now,
            nbf: now,
            iss: self.options.issuer.clone(),
            jti: uuid::Uuid::new_v4().to_string(),
            sub: user_name(namespace, &account.name),
            kubernetes: Kubernetes {
                namespace: namespace.into(),
                serviceaccount: account,
                secret: binding.secret,
                pod: binding.pod,
                node: binding.node,
            },
        };
        let expiry = jiff::Timestamp::from_second(exp).map_err(|_| JwtError::Sign)?;
        Ok((self.key.sign(&claims)?, expiry))
    }

    /// Issues the token of a `kubernetes.io/service-account-token` Secret.
    pub fn mint_legacy(&self, namespace: &str, secret: &str, account: &Ref) -> Result<String, JwtError> {
        self.key.sign(&LegacyClaims::new(namespace, secret, &account.name, &account.uid))
    }

    /// Whether a token claims this issuer; other authenticators handle other issuers.
    pub fn is_ours(&self, token: &str) -> bool {
        jwt::claimed_issuer(token).is_some_and(|iss| iss == self.options.issuer || iss == LEGACY_ISSUER)
    }

    /// The user of a token and the audiences that match, or why it is invalid.
    pub fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(UserInfo, Vec<String>), &'static str> {
        match jwt::claimed_issuer(token).as_deref() {
            Some(LEGACY_ISSUER) => self.legacy(token),
            _ => self.bound(token, audiences),
        }
    }

    fn bound(&self, token: &str, audiences: &[String]) -> Result<(UserInfo, Vec<String>), &'static str> {
        let claims: Claims = self.key.verify(token).map_err(|_| "invalid token")?;
        let fit = claims.validate(&self.options.issuer, audiences, self.clock.now().as_second())?;
        let k = &claims.kubernetes;
        self.live("serviceaccounts", &k.namespace, &k.serviceaccount)
            .ok_or("the service account does not exist or was recreated")?;
        for (resource, namespace, bound) in
            [("secrets", k.namespace.as_str(), &k.secret), ("pods", k.namespace.as_str(), &k.pod)]
        {
            if let Some(bound) = bound {
                self.live(resource, namespace, bound)
                    .ok_or("the object to which the token is bound does not exist")?;
            }
        }
        // A pod's token names the node only for information; only a token without pod is bound to the node.
        if let (None, Some(node)) = (&k.pod, &k.node) {
            self.live("nodes", "", node).ok_or("the node to which the token is bound does not exist")?;
        }
        Ok((claims.user(), fit))
    }

    fn legacy(&self, token: &str) -> Result<(UserInfo, Vec<String>), &'static str> {
        #[derive(Deserialize)]
        struct Secret {
            #[serde(default)]
            data: BTreeMap<String, String>,
        }
        let claims: LegacyClaims = self.key.verify(token).map_err(|_| "invalid token")?;
        if claims.sub != user_name(&claims.namespace, &claims.name) {
            return Err("sub does not name the service account");
        }
        let key = Key::new("", "secrets", &claims.namespace, &claims.secret);
        let stored = self
            .storage
            .index()
            .get(&key)
            .filter(|v| is_live(v))
            .ok_or("the token's Secret does not exist")?;
        let stored: Secret =
            serde_json::from_slice(&stored.bytes()).map_err(|_| "failed to parse the token's Secret")?;
        let held = stored.data.get("token").and_then(|t| STANDARD.decode(t).ok()).unwrap_or_default();
        if !same(&held, token.as_bytes()) {
            return Err("the Secret has another token");
        }
        let account = Ref { name: claims.name.clone(), uid: claims.uid.clone() };
        self.live("serviceaccounts", &claims.namespace, &account)
            .ok_or("the service account does not exist or was recreated")?;
        let user = service_account_user(&claims.namespace, &claims.name, &claims.uid);
        Ok((user, self.options.audiences.clone()))
    }

    /// The object, if it exists with this UID and is not being deleted.
    fn live(&self, resource: &str, namespace: &str, wanted: &Ref) -> Option<Arc<Version>> {
        let found = self.storage.index().get(&Key::new("", resource, namespace, &wanted.name))?;
        (is_live(&found) && (wanted.uid.is_empty() || *found.meta().uid == *wanted.uid)).then_some(found)
    }
}

fn is_live(version: &Version) -> bool {
    version.meta().deletion_timestamp.is_none()
}
