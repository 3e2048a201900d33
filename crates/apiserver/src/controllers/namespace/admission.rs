//! Namespace lifecycle admission: objects need a namespace that exists and is not being deleted.
//! Behaviour: kubernetes plugin/pkg/admission/namespace/lifecycle.

use super::SYSTEM;
use crate::admission::{Admission, AdmissionRequest, Operation};
use crate::resources::Resource;
use crate::status::{GroupName, Status};
use crate::storage::{Key, Storage};
use futures::future::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

const NAMESPACES: GroupName<'static> = GroupName { group: "", name: "namespaces" };

/// Checks writes against the state of their namespace.
pub struct NamespaceLifecycle {
    storage: Arc<dyn Storage>,
}

impl NamespaceLifecycle {
    /// Creates the hook.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage }
    }

    fn check(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if is_namespace(request.resource) {
            let kept = SYSTEM.iter().take(3).any(|n| *n == request.name);
            if request.operation == Operation::Delete && kept {
                return Err(Status::forbidden(NAMESPACES, request.name, "this namespace may not be deleted"));
            }
            return Ok(());
        }
        if request.operation == Operation::Delete {
            return Ok(());
        }
        let namespace = request.namespace;
        let Some(found) = self.storage.index().get(&Key::new("", "namespaces", "", namespace)) else {
            return Err(Status::not_found(NAMESPACES, namespace));
        };
        if request.operation == Operation::Create && found.meta().deletion_timestamp.is_some() {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            return Err(Status::forbidden(request.resource.group_resource(), request.name, &why).with_cause(
                "NamespaceTerminating",
                "metadata.namespace",
                format!("namespace {namespace} is being terminated"),
            ));
        }
        Ok(())
    }
}

impl Admission for NamespaceLifecycle {
    fn name(&self) -> &str {
        "NamespaceLifecycle"
    }

    fn handles(&self, operation: Operation, resource: &Resource, _subresource: &str) -> bool {
        is_namespace(resource) || (resource.def.namespaced && operation != Operation::Delete)
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        _object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        // Checked here as well, so that other hooks do not see objects that cannot be stored.
        Box::pin(std::future::ready(self.check(request)))
    }

    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        _object: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(self.check(request)))
    }
}

fn is_namespace(resource: &Resource) -> bool {
    resource.def.group.is_empty() && resource.def.plural == "namespaces"
}
