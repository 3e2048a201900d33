//! Callers and their permissions: the types that requests carry, and the traits that `auth` implements.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use rustls_pki_types::CertificateDer;

use crate::status::Status;

/// The caller of a request. If a request extension of this type is present, it is trusted (in-process callers);
/// otherwise the [`Authenticator`] determines the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// User name.
    pub name: String,
    /// UID, often empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with all permissions, for the server's own controllers.
    pub fn system_masters(name: &str) -> Self {
        let groups = vec!["system:masters".to_owned(), "system:authenticated".to_owned()];
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    /// `system:anonymous`.
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }

    /// Whether the user is a member of the group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// Request extension: the client's certificate chain, leaf first, verified against the client CA by TLS.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificates(pub Vec<CertificateDer<'static>>);

/// Request extension: the address of the peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub SocketAddr);

/// Request extension: called when the request's credential is found to be valid, before its body is read. The server
/// may then treat the connection as authenticated.
#[derive(Clone)]
pub struct OnAuthenticated(pub Arc<dyn Fn() + Send + Sync>);

impl OnAuthenticated {
    /// Calls the extension of the request, if it has one.
    pub fn notify(extensions: &http::Extensions) {
        if let Some(callback) = extensions.get::<Self>() {
            (callback.0)();
        }
    }
}

/// Determines the caller of a request.
pub trait Authenticator: Send + Sync + 'static {
    /// `Ok(None)` means that the request has no credential of this authenticator's kind (the request is then anonymous
    /// or gets 401); an error means that its credential is invalid.
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>>;
}

/// The attributes of a request, for the [`Authorizer`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The caller.
    pub user: UserInfo,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for other paths
    /// the lower-case HTTP method.
    pub verb: String,
    /// Group of the resource.
    pub group: String,
    /// Version of the resource.
    pub version: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource or empty.
    pub subresource: String,
    /// Namespace or empty.
    pub namespace: String,
    /// Object name or empty; also set from a `metadata.name=` field selector.
    pub name: String,
    /// Whether this is a resource request; otherwise `path` is set.
    pub resource_request: bool,
    /// URL path.
    pub path: String,
}

impl Attributes {
    /// Upstream's text after `forbidden: `.
    pub fn denial(&self, reason: &str) -> String {
        let user = &self.user.name;
        let mut text = if self.resource_request {
            let resource = if self.subresource.is_empty() {
                self.resource.clone()
            } else {
                format!("{}/{}", self.resource, self.subresource)
            };
            let scope = if self.namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {:?}", self.namespace)
            };
            format!(
                "User {user:?} cannot {} resource {resource:?} in API group {:?} {scope}",
                self.verb, self.group
            )
        } else {
            format!("User {user:?} cannot {} path {:?}", self.verb, self.path)
        };
        if !reason.is_empty() {
            text.push_str(": ");
            text.push_str(reason);
        }
        text
    }
}

/// The result of an [`Authorizer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// Why it is denied, or which rule allows it.
    pub reason: String,
}

impl Decision {
    /// Allows the request.
    pub fn allow() -> Self {
        Self { allowed: true, reason: String::new() }
    }

    /// Denies the request.
    pub fn deny(reason: impl Into<String>) -> Self {
        Self { allowed: false, reason: reason.into() }
    }
}

/// Decides whether a caller may perform a request.
pub trait Authorizer: Send + Sync + 'static {
    /// Returns the decision; an error is a 500.
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Result<Decision, Status>>;
}

/// Replaces the caller if the request asks for impersonation.
pub trait Impersonation: Send + Sync + 'static {
    /// Returns the effective user. Must reject users that the caller may not impersonate.
    fn impersonate<'a>(
        &'a self,
        user: UserInfo,
        request: &'a http::request::Parts,
        authorizer: &'a dyn Authorizer,
    ) -> BoxFuture<'a, Result<UserInfo, Status>>;
}

/// Allows all requests, as `system:admin`; only for servers that nothing else can reach.
#[derive(Debug, Default, Clone, Copy)]
pub struct AllowAll;

impl Authenticator for AllowAll {
    fn authenticate<'a>(
        &'a self,
        _request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        Box::pin(async { Ok(Some(UserInfo::system_masters("system:admin"))) })
    }
}

impl Authorizer for AllowAll {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes) -> BoxFuture<'a, Result<Decision, Status>> {
        Box::pin(async { Ok(Decision::allow()) })
    }
}
