//! Decodes `null` as an unset field, as Go's decoder does.

use serde::{Deserialize, Deserializer};

/// Rancher's own clients send `null` for unset lists, maps and scalars. Such a field must not make the whole
/// object undecodable.
pub(crate) fn as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// The equivalent of Go's `omitempty` for numbers.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
