//! `metadata.managedFields`: which manager owns which field, and how writes change that.
//!
//! A server calls [`FieldManager::update`] on every create, update and patch, once the new object is complete, and
//! [`FieldManager::apply`] for a server-side apply. Both take the live object with its managedFields and return the
//! object to store with its managedFields.

mod cap;
mod conflict;
mod entry;
mod last_applied;
mod manager;
mod scale;
mod time;
mod timestamps;
mod updater;
mod versions;

pub use conflict::{Conflict, Conflicts};
pub use entry::{DecodeError, Entry, Managed, Operation, is_reset};
pub use last_applied::LAST_APPLIED_ANNOTATION;
pub use manager::{ApplyError, FieldManager, MAX_UPDATE_MANAGERS, UpdateError};
pub use scale::{to_parent, to_scale};
pub use timestamps::keep_unchanged_timestamps;
pub use versions::{SingleVersion, Versions};
