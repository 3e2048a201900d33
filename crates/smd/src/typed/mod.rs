//! Operations on values, driven by their type.

mod compare;
mod fieldset;
mod items;
mod merge;
mod reconcile;
mod remove;
mod validate;

pub use compare::{Comparison, compare};
pub use fieldset::to_field_set;
pub use items::ItemError;
pub use merge::{MergeError, merge};
pub use reconcile::reconcile;
pub use remove::{extract, remove};
pub use validate::{Duplicates, Invalid, validate};
