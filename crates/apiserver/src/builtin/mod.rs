//! The built-in kinds: their table and their behaviour on writes.
//!
//! `table.rs` lists them; each other file has the behaviour of a family of kinds, as plain functions over JSON that a
//! [`Builtin`] strategy calls.

pub(crate) mod api_services;
mod config;
mod events;
mod eviction;
mod namespace;
mod rbac;
mod service;
mod storage_kinds;
mod table;
mod workload;

use serde_json::Value;

use crate::object::object_mut;
use crate::protobuf;
use crate::status::{FieldError, Status};
use crate::strategy::Strategy;

pub use service::ServiceAddresses;
pub use table::resources;

type Validate = fn(&Value, Option<&Value>) -> Vec<FieldError>;

/// The behaviour of a kind as functions; `None` does nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Builtin {
    pub(crate) default: Option<fn(&mut Value)>,
    pub(crate) create: Option<fn(&mut Value)>,
    pub(crate) update: Option<fn(&mut Value, &Value, &str)>,
    /// Gets the stored object on update.
    pub(crate) validate: Option<Validate>,
    pub(crate) warnings: Option<fn(&Value) -> Vec<String>>,
    pub(crate) holds: Option<fn(&Value) -> bool>,
    pub(crate) delete: Option<fn(&mut Value)>,
}

impl Strategy for Builtin {
    fn check_types(&self, object: &Value) -> Result<(), String> {
        protobuf::check_types(object)
    }

    fn prune(&self, object: &mut Value) -> Vec<String> {
        protobuf::prune(object)
    }

    fn default(&self, object: &mut Value) -> Result<(), Status> {
        if let Some(default) = self.default {
            default(object);
        }
        Ok(())
    }

    fn prepare_for_create(&self, object: &mut Value) {
        if let Some(create) = self.create {
            create(object);
        }
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value, subresource: &str) {
        if let Some(update) = self.update {
            update(object, old, subresource);
        }
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        self.validate.map(|validate| validate(object, None)).unwrap_or_default()
    }

    fn validate_update(&self, object: &Value, old: &Value, _subresource: &str) -> Vec<FieldError> {
        self.validate.map(|validate| validate(object, Some(old))).unwrap_or_default()
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        self.warnings.map(|warnings| warnings(object)).unwrap_or_default()
    }

    fn holds(&self, object: &Value) -> bool {
        self.holds.is_some_and(|holds| holds(object))
    }

    fn prepare_for_delete(&self, object: &mut Value) {
        if let Some(delete) = self.delete {
            delete(object);
        }
    }
}

/// Sets a field unless it has a value.
fn set_default(object: &mut Value, field: &str, value: impl Into<Value>) {
    let fields = object_mut(object);
    if fields.get(field).is_none_or(Value::is_null) {
        fields.insert(field.to_owned(), value.into());
    }
}

/// The object in a field, created when absent.
fn child<'a>(object: &'a mut Value, field: &str) -> &'a mut Value {
    let slot = object_mut(object).entry(field).or_insert(Value::Null);
    object_mut(slot);
    slot
}

/// The mutable items of a list.
fn items_mut<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The items of a list.
fn items<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Restores the stored value of a top-level field.
fn keep_field(object: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => drop(object_mut(object).insert(field.to_owned(), value.clone())),
        None => drop(object_mut(object).remove(field)),
    }
}

/// Reports an error if a field differs from the stored one.
fn immutable(object: &Value, old: Option<&Value>, path: &[&str], errors: &mut Vec<FieldError>) {
    let Some(old) = old else { return };
    let null = Value::Null;
    let at =
        |value: &Value| path.iter().try_fold(value, |value, key| value.get(key)).unwrap_or(&null).clone();
    let (new, old) = (at(object), at(old));
    if new != old {
        errors.push(FieldError::invalid(path.join("."), &new, "field is immutable"));
    }
}
