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

/// All complaints in one line: an API without our hooks takes what they would refuse, and then the controllers say it.
pub fn complaints(errors: &[FieldError]) -> Option<String> {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}
