//! Patches: JSON patch, merge patch, and traits for strategic merge and server-side apply, which [`Fields`] implements.

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

use crate::resources::{Resource, ResourceTable};
use crate::status::Status;

/// The type of a built-in kind, for checks of its fields.
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

/// The writer, for `metadata.managedFields`.
#[derive(Clone, Debug)]
pub struct Manager<'a> {
    /// Field manager name.
    pub name: &'a str,
    /// Subresource or empty.
    pub subresource: &'a str,
    /// The time.
    pub now: Timestamp,
}

/// Ownership of fields.
pub trait FieldManager: Send + Sync + 'static {
    /// Called once at start; provides the other versions of a kind.
    fn attach(&self, _resources: &Arc<ResourceTable>) {}

    /// Records in `new.metadata.managedFields` which fields a create (`live` is `None`) or update changed.
    fn track(
        &self,
        resource: &Resource,
        live: Option<&Value>,
        new: &mut Value,
        by: &Manager<'_>,
    ) -> Result<(), Status>;

    /// Server-side apply: merges `config` into `live` and returns the object to store, with its ownership. `live` is
    /// `None` if the object does not exist.
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
