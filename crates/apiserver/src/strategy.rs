//! The behaviour of one resource in one version, between the request and the store.
//!
//! The order of a write is decode (prune) → default → prepare → mutating admission → default → ownership tracking →
//! validate → validating admission → `to_storage`. The default implementation of every step does nothing.

use futures::future::BoxFuture;
use serde_json::Value;

use crate::status::{FieldError, Status};

/// Hooks into the write and read path of a resource. Methods take whole objects as JSON.
pub trait Strategy: Send + Sync + 'static {
    /// Rejects values whose type does not match their field; the error is the message for the client (400).
    fn check_types(&self, _object: &Value) -> Result<(), String> {
        Ok(())
    }

    /// Drops fields that the schema does not have and returns their paths (`spec.x`), for `fieldValidation`.
    fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// Applies defaults. Must be idempotent.
    fn default(&self, _object: &mut Value) -> Result<(), Status> {
        Ok(())
    }

    /// Sets or clears the fields that the server controls on create.
    fn prepare_for_create(&self, _object: &mut Value) {}

    /// Sets or keeps the fields that the server controls on update. `subresource` is empty, `status` or `scale`.
    fn prepare_for_update(&self, _object: &mut Value, _old: &Value, _subresource: &str) {}

    /// Returns the errors of a new object.
    fn validate_create(&self, _object: &Value) -> Vec<FieldError> {
        Vec::new()
    }

    /// Returns the errors of a changed object.
    fn validate_update(&self, object: &Value, _old: &Value, _subresource: &str) -> Vec<FieldError> {
        self.validate_create(object)
    }

    /// Returns the warnings for the client.
    fn warnings(&self, _object: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether an object that is being deleted must be kept although `metadata.finalizers` is empty (Namespace).
    fn holds(&self, _object: &Value) -> bool {
        false
    }

    /// Changes the object when its deletion starts (Namespace: phase Terminating).
    fn prepare_for_delete(&self, _object: &mut Value) {}

    /// Whether stored bytes can be served unchanged.
    fn serves_stored_bytes(&self) -> bool {
        true
    }

    /// Converts an object of this version to the stored version.
    fn to_storage<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move { Ok(object) })
    }

    /// Converts stored objects to this version. Called when [`Self::serves_stored_bytes`] is false or the stored
    /// `apiVersion` differs; the caller sets `apiVersion` afterwards.
    // Named as the opposite of `to_storage`; not a constructor.
    #[allow(clippy::wrong_self_convention)]
    fn from_storage<'a>(&'a self, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(async move { Ok(objects) })
    }

    /// The CRD's definition of the resource (schema, columns), for tables, OpenAPI and field ownership.
    fn custom(&self) -> Option<&crate::crd::CustomKind> {
        None
    }
}

/// A resource without special behaviour.
#[derive(Debug, Default, Clone, Copy)]
pub struct Plain;

impl Strategy for Plain {}
