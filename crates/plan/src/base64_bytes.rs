//! `[]byte` as Go's encoding/json writes it: standard base64, and `null` read as empty.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    match Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)? {
        None => Ok(Vec::new()),
        Some(text) => STANDARD.decode(text.as_bytes()).map_err(D::Error::custom),
    }
}
