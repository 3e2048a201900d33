//! In-process admission: hooks of other crates (or webhooks) into every write.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use crate::identity::UserInfo;
use crate::resources::Resource;
use crate::status::Status;

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// POST, or apply/PUT of an absent object.
    Create,
    /// PUT or PATCH.
    Update,
    /// DELETE.
    Delete,
}

impl Operation {
    /// `CREATE`, `UPDATE`, `DELETE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write under admission.
#[derive(Clone)]
pub struct AdmissionRequest<'a> {
    /// What kind of write.
    pub operation: Operation,
    /// The resource.
    pub resource: &'a Arc<Resource>,
    /// Subresource or empty.
    pub subresource: &'a str,
    /// Namespace or empty.
    pub namespace: &'a str,
    /// Name; empty only until it is generated.
    pub name: &'a str,
    /// The caller.
    pub user: &'a UserInfo,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// The stored object, for update and delete.
    pub old: Option<&'a Value>,
    /// Collects warnings for the client.
    pub warnings: &'a Warnings,
}

/// Hooks into writes. All mutating hooks run first, in order, then defaulting and validation, then all validating
/// hooks. A hook must not write the object of its request.
pub trait Admission: Send + Sync + 'static {
    /// A name for logs and error messages.
    fn name(&self) -> &str;

    /// Whether the hook handles this request; otherwise it is skipped.
    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool;

    /// Changes the object or rejects the request. Not called for deletes.
    fn mutate<'a>(
        &'a self,
        _request: &'a AdmissionRequest<'a>,
        _object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async { Ok(()) })
    }

    /// Accepts or rejects the request; `object` is `None` for deletes.
    fn validate<'a>(
        &'a self,
        _request: &'a AdmissionRequest<'a>,
        _object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async { Ok(()) })
    }
}

/// Texts for `Warning` headers, collected while a request is handled.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Adds a text unless it is already present.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut all = self.0.lock();
        if !all.contains(&text) {
            all.push(text);
        }
    }

    /// Removes and returns all texts.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}
