//! Patches: JSON patch and merge patch here; strategic merge and server-side apply through the seams below.

mod json;
mod merge;

use jiff::Timestamp;
use serde_json::Value;

pub use json::{MAX_OPERATIONS, json_patch};
pub use merge::merge_patch;

use crate::registry::Resource;
use crate::status::Status;

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
