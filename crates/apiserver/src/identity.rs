//! Who asks and whether they may: the types that requests carry and the seams that `auth` fills.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use rustls_pki_types::CertificateDer;

use crate::status::Status;

/// The caller of a request. When it is present as a request extension it is trusted (in-process callers);
/// otherwise the [`Authenticator`] finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// User name.
    pub name: String,
    /// Opaque identity, often empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The user that passes every authorization, for the server's own controllers.
    pub fn system_masters(name: &str) -> Self {
        let groups = vec!["system:masters".to_owned(), "system:authenticated".to_owned()];
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    /// `system:anonymous`.
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }

    /// Whether the user is in the group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// Request extension: the client's certificate chain, leaf first, verified against the client CA by TLS.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificates(pub Vec<CertificateDer<'static>>);

/// Request extension: where the connection comes from.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub SocketAddr);

/// Request extension: called when the request's credential is found to be good, before its body is read. Whoever serves
/// the connection may then treat it as one of a known caller.
#[derive(Clone)]
pub struct OnRecognised(pub Arc<dyn Fn() + Send + Sync>);

impl OnRecognised {
    /// Calls what the request carries, if anything.
    pub fn tell(extensions: &http::Extensions) {
        if let Some(told) = extensions.get::<Self>() {
            (told.0)();
        }
    }
}

/// Finds the caller of a request.
pub trait Authenticator: Send + Sync + 'static {
    /// `Ok(None)` means that the request carries no credential this authenticator knows (then it is
    /// anonymous or 401); an error means that a credential was given and is bad.
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>>;
}

/// What a request wants to do, for the [`Authorizer`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Who.
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
    /// Whether this is about a resource; if not, `path` counts.
    pub resource_request: bool,
    /// URL path.
    pub path: String,
}

impl Attributes {
    /// The text after `forbidden: ` that upstream uses.
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

/// Answer of an [`Authorizer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may be done.
    pub allowed: bool,
    /// Why not, or by which rule.
    pub reason: String,
}

impl Decision {
    /// Yes.
    pub fn allow() -> Self {
        Self { allowed: true, reason: String::new() }
    }

    /// No, because.
    pub fn deny(reason: impl Into<String>) -> Self {
        Self { allowed: false, reason: reason.into() }
    }
}

/// Decides whether a caller may do something.
pub trait Authorizer: Send + Sync + 'static {
    /// The decision; an error is a 500.
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Result<Decision, Status>>;
}

/// Swaps the caller when the request asks to act as someone else.
pub trait Impersonation: Send + Sync + 'static {
    /// Returns the user to go on with. Must reject what the caller may not impersonate.
    fn impersonate<'a>(
        &'a self,
        user: UserInfo,
        request: &'a http::request::Parts,
        authorizer: &'a dyn Authorizer,
    ) -> BoxFuture<'a, Result<UserInfo, Status>>;
}

/// Lets everyone do everything as `system:admin`; only for servers that nothing else can reach.
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
