//! Paths to fields, sets of paths, and their `FieldsV1` form.

mod element;
mod ops;
mod serialize;
mod set;

pub use element::{PathElement, display_path};
pub use serialize::FieldsError;
pub use set::Set;
pub(crate) use set::SetBuilder;
