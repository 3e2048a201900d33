//! Completes token Secrets when they are written: the response to a create already has the token.

use super::claims::Ref;
use super::{Issuer, legacy};
use crate::admission::{Admission, AdmissionRequest, Operation};
use crate::object::ObjectExt;
use crate::resources::Resource;
use crate::status::Status;
use crate::storage::{Key, Storage};
use futures::future::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// Completes Secrets of type `kubernetes.io/service-account-token`.
pub struct TokenSecrets {
    issuer: Arc<Issuer>,
    storage: Arc<dyn Storage>,
    ca_pem: String,
}

impl TokenSecrets {
    /// Issues tokens with this issuer; `ca_pem` is the content of `ca.crt`.
    pub fn new(issuer: Arc<Issuer>, storage: Arc<dyn Storage>, ca_pem: String) -> Self {
        Self { issuer, storage, ca_pem }
    }

    fn fill(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), Status> {
        let Some(name) = legacy::account_name(object) else { return Ok(()) };
        let Some(account) =
            self.storage.index().get(&Key::new("", "serviceaccounts", request.namespace, name))
        else {
            return Ok(());
        };
        let uid = account.meta().uid.to_string();
        if object.is_deleting() || legacy::belongs_to_another(object, &uid) {
            return Ok(());
        }
        let account = Ref { name: name.to_owned(), uid };
        if let Some(filled) =
            legacy::completed(object, &account, &self.ca_pem, &self.issuer).map_err(Status::internal)?
        {
            *object = filled;
        }
        Ok(())
    }
}

impl Admission for TokenSecrets {
    fn name(&self) -> &str {
        "ServiceAccountTokenSecrets"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        operation != Operation::Delete
            && subresource.is_empty()
            && resource.def.group.is_empty()
            && resource.def.plural == "secrets"
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(self.fill(request, object)))
    }
}
