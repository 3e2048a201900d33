//! The versions of a kind, as far as ownership needs them.

use serde_json::Value;

use crate::schema::Type;

/// Owners express their fields in the version they wrote; this is how the object is seen there.
pub trait Versions {
    /// The type of the object at `api_version`; `None` if that version is not served any more, in
    /// which case its owners are forgotten.
    fn type_at(&self, api_version: &str) -> Option<Type<'_>>;

    /// The object, converted. Never called with `from == to`.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, String>;
}

/// A kind that is served in one version only.
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
        Err(format!("there is no conversion from {from} to {to}"))
    }
}
