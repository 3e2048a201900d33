//! Authentication and authorization.
//!
//! [`Auth`] combines the parts: certificates (`pki`, `x509`), tokens of service accounts (`serviceaccount`), bootstrap
//! tokens, authenticators of the embedding program, anonymous callers, impersonation, and RBAC (`rbac`). Read
//! `chain.rs` for the order of credentials and `rbac/policy.rs` for the decision. This module does not depend on the
//! objects of the embedding program.

mod bootstrap_authenticator;
pub(crate) mod bootstrap_token;
pub mod chain;
pub(crate) mod fields;
mod impersonation;
pub mod pki;
pub mod rbac;
pub mod reviews;
mod routes;
pub mod serviceaccount;
mod x509;

pub use bootstrap_authenticator::BootstrapTokens;
pub use chain::Chain;
pub use impersonation::HeaderImpersonation;
pub use x509::X509;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::identity::{Authenticator, Authorizer};
use crate::objects::Objects;
use crate::resources::{Resource, ResourceTable, Serve, SubresourceDef};
use crate::server::Options;
use crate::storage::Storage;
use pki::{Pki, PkiError};
use rbac::{Rbac, RbacAdmission};
use reviews::Reviewer;
use serviceaccount::jwt::JwtError;
use serviceaccount::{Issuer, IssuerOptions, ServiceAccountTokens, TokenRequest, TokenSecrets};
use std::sync::Arc;

/// Options of authentication.
pub struct AuthOptions {
    /// Authority for client certificates and the key for service-account tokens.
    pub pki: Arc<Pki>,
    /// Issuer and audiences of service-account tokens.
    pub issuer: IssuerOptions,
    /// The URL at which clients reach the server, for OpenID discovery.
    pub server_url: String,
    /// Further authenticators, tried after the built-in ones, in order.
    pub authenticators: Vec<Arc<dyn Authenticator>>,
    /// Accept requests without credentials as `system:anonymous`.
    pub anonymous: bool,
}

impl AuthOptions {
    /// The default options.
    pub fn new(pki: Arc<Pki>) -> Self {
        Self {
            pki,
            issuer: IssuerOptions::default(),
            server_url: serviceaccount::DEFAULT_ISSUER.into(),
            authenticators: Vec::new(),
            anonymous: true,
        }
    }
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The certificate authority is invalid.
    #[error("failed to set up the verification of client certificates")]
    Pki(#[from] PkiError),
    /// The key for tokens is invalid.
    #[error("failed to load the key that signs service-account tokens")]
    Key(#[from] JwtError),
}

/// Authentication and authorization of one server.
pub struct Auth {
    /// Authenticates callers.
    pub authenticator: Arc<Chain>,
    /// Authorizes callers.
    pub rbac: Arc<Rbac>,
    /// Signs service-account tokens.
    pub issuer: Arc<Issuer>,
    reviewer: Arc<Reviewer>,
    storage: Arc<dyn Storage>,
    ca_pem: String,
    server_url: String,
    anonymous: bool,
}

impl Auth {
    /// Creates all parts for one store.
    pub fn new(
        options: AuthOptions,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AuthError> {
        let key = options.pki.service_account_key_pem();
        let issuer = Arc::new(Issuer::new(key, options.issuer, storage.clone(), clock.clone())?);
        let mut chain: Vec<Arc<dyn Authenticator>> = vec![
            Arc::new(X509::new(options.pki.ca_der(), clock.clone())?),
            Arc::new(ServiceAccountTokens::new(issuer.clone())),
            Arc::new(BootstrapTokens::new(storage.clone(), clock)),
        ];
        chain.extend(options.authenticators);
        let authenticator = Arc::new(Chain::new(chain, options.anonymous));
        let rbac = Arc::new(Rbac::new(storage.clone()));
        let reviewer = Arc::new(Reviewer {
            authenticator: authenticator.clone(),
            authorizer: rbac.clone(),
            rbac: rbac.clone(),
            issuer: Some(issuer.clone()),
        });
        let ca_pem = options.pki.ca_pem().to_owned();
        let (server_url, anonymous) = (options.server_url, options.anonymous);
        Ok(Self { authenticator, rbac, issuer, reviewer, storage, ca_pem, server_url, anonymous })
    }

    /// Adds authentication, RBAC, impersonation, OpenID discovery and the admission hooks to the options of a server
    /// before it starts.
    pub fn install(&self, options: &mut Options) {
        let plugins = &mut options.plugins;
        plugins.authenticator = self.authenticator.clone();
        plugins.authorizer = self.rbac.clone();
        plugins.impersonation = Some(Arc::new(HeaderImpersonation));
        plugins.anonymous = self.anonymous;
        plugins.routes.push(Arc::new(routes::OpenId::new(self.issuer.clone(), self.server_url.clone())));
        options.admission.extend(self.admission());
    }

    /// The admission hooks, for a server that is assembled manually.
    pub fn admission(&self) -> Vec<Arc<dyn Admission>> {
        let authorizer: Arc<dyn Authorizer> = self.rbac.clone();
        vec![
            Arc::new(RbacAdmission::new(self.rbac.clone(), authorizer)),
            Arc::new(TokenSecrets::new(self.issuer.clone(), self.storage.clone(), self.ca_pem.clone())),
        ]
    }

    /// Serves the reviews and `serviceaccounts/token` on a running server.
    pub fn register(&self, objects: &Objects) {
        let resources = objects.resources();
        resources
            .change(|editor| reviews::resources(&self.reviewer).into_iter().for_each(|r| editor.insert(r)));
        let token = SubresourceDef {
            name: "token".into(),
            group: "authentication.k8s.io".into(),
            version: "v1".into(),
            kind: "TokenRequest".into(),
            verbs: vec!["create"],
            serve: Serve::Connect(Arc::new(TokenRequest::new(self.issuer.clone()))),
        };
        add_subresource(resources, ("", "v1", "serviceaccounts"), token);
    }
}

/// Adds a subresource to a served resource.
fn add_subresource(
    resources: &ResourceTable,
    (group, version, plural): (&str, &str, &str),
    sub: SubresourceDef,
) {
    let Some(parent) = resources.resource(group, version, plural) else { return };
    let mut def = parent.def.clone();
    def.subresources.retain(|s| s.name != sub.name);
    def.subresources.push(sub);
    resources.change(|editor| editor.insert(Resource::new(def, parent.strategy.clone())));
}
