//! Defaults and validation, for API servers, webhooks, and the controllers themselves.
//!
//! What Cluster API's webhooks do, as pure functions: `default_x(&mut new, old)` fills in what is unset,
//! `validate_x(&new, old)` returns every complaint with the path of its field.

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

/// One complaint about an object.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FieldError {
    /// Path of the field, such as `spec.version`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

impl FieldError {
    /// A complaint about the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Fields that are stored although nothing acts on them yet, in words for who sets them.
pub fn without_effect(kind: &str, object: &Value) -> Option<String> {
    let is_set = |pointer: &str| match object.pointer(pointer) {
        Some(Value::Array(list)) => !list.is_empty(),
        Some(value) => !value.is_null(),
        None => false,
    };
    let taints = |pointer: &str| {
        let path = pointer.trim_start_matches('/').replace('/', ".");
        is_set(pointer).then(|| format!("{path} is stored, but taints are not brought to Nodes yet"))
    };
    match kind {
        "Cluster" => is_set("/spec/topology").then(|| format!("spec.topology is stored, but {NO_TOPOLOGY}")),
        "Machine" => taints("/spec/taints"),
        "MachineSet" | "MachineDeployment" => taints("/spec/template/spec/taints"),
        _ => None,
    }
}

/// What to do instead of giving a Cluster a topology.
pub(crate) const NO_TOPOLOGY: &str =
    "topologies are not implemented yet: set spec.infrastructureRef and spec.controlPlaneRef";

/// All complaints in one line: an API without our hooks takes what they would refuse, and then the controllers say it.
pub fn complaints(errors: &[FieldError]) -> Option<String> {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}
