//! Reading `null` as "absent", the way Go's decoder does for every field.

use serde::{Deserialize, Deserializer};

/// Rancher's own clients send `null` for lists, maps and scalars that are unset; one such field must
/// not make a whole object unreadable.
pub(crate) fn as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Go's `omitempty` for numbers.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
