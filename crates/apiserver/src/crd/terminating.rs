//! Rejects new objects of a kind whose CRD is being deleted; otherwise the deletion might never finish.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use serde_json::Value;

use crate::admission::{Admission, AdmissionRequest, Operation};
use crate::resources::Resource;
use crate::status::Status;

/// Rejects creates of custom resources whose topic (`<group>/<plural>`) is in the set.
pub(super) struct RejectCreates(pub(super) Arc<RwLock<HashSet<String>>>);

impl Admission for RejectCreates {
    fn name(&self) -> &str {
        "CustomResourceDefinitionTerminating"
    }

    fn handles(&self, operation: Operation, resource: &Resource, subresource: &str) -> bool {
        let def = &resource.def;
        operation == Operation::Create
            && def.custom
            && subresource.is_empty()
            && self.0.read().contains(&format!("{}/{}", def.group, def.plural))
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        _object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let why = "create not allowed while custom resource definition is terminating";
            Err(Status::forbidden(request.resource.group_resource(), request.name, why))
        })
    }
}
