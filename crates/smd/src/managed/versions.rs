//! The versions of a kind, as needed to track ownership.

use serde_json::Value;

use crate::schema::Type;

/// Owners record their fields in the version that they wrote; this trait provides the object in that version.
pub trait Versions {
    /// The type of the object at `api_version`; `None` if that version is no longer served, so that its owners are
    /// dropped.
    fn type_at(&self, api_version: &str) -> Option<Type<'_>>;

    /// Converts the object. Never called with `from == to`.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, String>;
}

/// A kind with a single served version.
#[derive(Clone, Copy, Debug)]
pub struct SingleVersion<'s> {
    /// The version.
    pub api_version: &'s str,
    /// Its type.
    pub ty: Type<'s>,
}

impl Versions for SingleVersion<'_> {
    fn type_at(&self, api_version: &str) -> Option<Type<'_>> {
        (api_version == self.api_version).then_some(self.ty)
    }

    fn convert(&self, _: &Value, from: &str, to: &str) -> Result<Value, String> {
        Err(format!("no conversion from {from} to {to}"))
    }
}
