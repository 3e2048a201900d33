//! Defaults and validation, for API servers, webhooks, and the controllers themselves.
//!
//! The rules of Cluster API's webhooks as pure functions: `default_x(&mut new, old)` sets defaults, and
//! `validate_x(&new, old)` returns every error with the path of its field.

mod defaults;
#[cfg(test)]
mod tests;
mod validate;

pub use defaults::{
    default_machine, default_machine_deployment, default_machine_health_check, default_machine_set,
};
pub use validate::{
    validate_cluster, validate_machine, validate_machine_deployment, validate_machine_health_check,
    validate_machine_set,
};

use serde_json::Value;

/// A validation error.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FieldError {
    /// Path of the field, such as `spec.version`.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl FieldError {
    /// An error in the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Warnings about fields that are stored but have no effect yet.
pub fn without_effect(kind: &str, object: &Value) -> Option<String> {
    let is_set = |pointer: &str| match object.pointer(pointer) {
        Some(Value::Array(list)) => !list.is_empty(),
        Some(value) => !value.is_null(),
        None => false,
    };
    let taints = |pointer: &str| {
        let path = pointer.trim_start_matches('/').replace('/', ".");
        is_set(pointer).then(|| format!("{path} is stored, but taints are not copied to Nodes yet"))
    };
    match kind {
        "Cluster" => is_set("/spec/topology").then(|| format!("spec.topology is stored, but {NO_TOPOLOGY}")),
        "Machine" => taints("/spec/taints"),
        "MachineSet" | "MachineDeployment" => taints("/spec/template/spec/taints"),
        _ => None,
    }
}

/// What to use instead of a topology.
pub(crate) const NO_TOPOLOGY: &str =
    "topologies are not implemented yet: set spec.infrastructureRef and spec.controlPlaneRef";

/// All errors in one line. On an API without these hooks, controllers report them.
pub fn complaints(errors: &[FieldError]) -> Option<String> {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}
