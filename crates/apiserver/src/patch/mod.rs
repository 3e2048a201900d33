//! Patches: JSON patch, merge patch, and behind the seams below strategic merge and server-side apply, which
//! [`Fields`] fills.

mod fields;
mod json;
mod merge;
mod strategic;
mod table;
mod types;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

pub use fields::Fields;
pub use json::json_patch;
pub use merge::merge_patch;

use crate::registry::{Registry, Resource};
use crate::status::Status;

/// The type of a built-in kind, for those who check fields against it.
pub(crate) fn builtin_type(api_version: &str, kind: &str) -> Option<drover_smd::schema::Type<'static>> {
    table::Builtin::get().kind(api_version, kind)
}

/// The kinds of patch, by content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// `application/json-patch+json`.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
    /// `application/apply-patch+yaml`.
    Apply,
}

/// Who writes, for `metadata.managedFields`.
#[derive(Clone, Debug)]
pub struct Manager<'a> {
    /// Field manager name.
    pub name: &'a str,
    /// Subresource or empty.
    pub subresource: &'a str,
    /// When.
    pub now: Timestamp,
}

/// Ownership of fields.
pub trait FieldManager: Send + Sync + 'static {
    /// Called once at start: where other versions of a kind are found.
    fn attach(&self, _registry: &Arc<Registry>) {}

    /// Records in `new.metadata.managedFields` which fields a create (`live` is `None`) or update changed.
    fn track(
        &self,
        resource: &Resource,
        live: Option<&Value>,
        new: &mut Value,
        by: &Manager<'_>,
    ) -> Result<(), Status>;

    /// Server-side apply: merges `config` into `live` and returns the object to be stored, ownership
    /// included. `live` is `None` when the object is to be created.
    fn apply(
        &self,
        resource: &Resource,
        live: Option<&Value>,
        config: &Value,
        by: &Manager<'_>,
        force: bool,
    ) -> Result<Value, Status>;
}

/// Strategic merge patch.
pub trait StrategicMerge: Send + Sync + 'static {
    /// The patched object.
    fn merge(&self, resource: &Resource, current: &Value, patch: &Value) -> Result<Value, Status>;
}

#[cfg(test)]
mod tests;
