//! The built-in kinds: their table and what each does on a write.

use crate::registry::Resource;

/// All built-in resources.
pub fn resources() -> Vec<Resource> {
    Vec::new()
}
