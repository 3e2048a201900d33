//! The behaviour of one resource in one version: what happens between the wire and the store.
//!
//! The order on a write is decode (prune) → default → prepare → mutating admission → default → ownership
//! tracking → validate → validating admission → `to_storage`. Every step has a do-nothing default.

use futures::future::BoxFuture;
use serde_json::Value;

use crate::status::{FieldError, Status};

/// Hooks into the write and read path of a resource. Methods work on whole objects as JSON.
pub trait Strategy: Send + Sync + 'static {
    /// Refuses values whose type does not fit their field; the error is what to tell the client (400).
    fn check_types(&self, _object: &Value) -> Result<(), String> {
        Ok(())
    }

    /// Drops fields the schema does not know and returns their paths (`spec.x`), for `fieldValidation`.
    fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// Fills in defaults. Must be idempotent.
    fn default(&self, _object: &mut Value) -> Result<(), Status> {
        Ok(())
    }

    /// Sets or clears what the server decides on create.
    fn prepare_for_create(&self, _object: &mut Value) {}

    /// Sets or keeps what the server decides on update. `subresource` is empty, `status` or `scale`.
    fn prepare_for_update(&self, _object: &mut Value, _old: &Value, _subresource: &str) {}

    /// What is wrong with a new object.
    fn validate_create(&self, _object: &Value) -> Vec<FieldError> {
        Vec::new()
    }

    /// What is wrong with a changed object.
    fn validate_update(&self, object: &Value, _old: &Value, _subresource: &str) -> Vec<FieldError> {
        self.validate_create(object)
    }

    /// What the client should be warned of.
    fn warnings(&self, _object: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether a deleting object must stay although `metadata.finalizers` is empty (Namespace).
    fn holds(&self, _object: &Value) -> bool {
        false
    }

    /// Changes the object when its deletion starts (Namespace: phase Terminating).
    fn prepare_for_delete(&self, _object: &mut Value) {}

    /// Whether stored bytes may be served as they are.
    fn serves_stored_bytes(&self) -> bool {
        true
    }

    /// Converts an object of this version into the stored form.
    fn to_storage<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move { Ok(object) })
    }

    /// Converts stored objects into this version. Called when [`Self::serves_stored_bytes`] is false or the
    /// stored `apiVersion` is another one; the caller sets `apiVersion` afterwards.
    // Named as the opposite of `to_storage`; it converts, it does not construct.
    #[allow(clippy::wrong_self_convention)]
    fn from_storage<'a>(&'a self, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(async move { Ok(objects) })
    }

    /// What a CRD says of the resource (schema, columns), for tables, OpenAPI and field ownership.
    fn custom(&self) -> Option<&crate::crd::CustomKind> {
        None
    }
}

/// A resource without any behaviour of its own.
#[derive(Debug, Default, Clone, Copy)]
pub struct Plain;

impl Strategy for Plain {}
