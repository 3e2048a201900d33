//! `[]byte` as Go's encoding/json writes it: standard base64, and `null` read as empty.

use base64::{
    DecodeError, Engine as _, alphabet,
    engine::{
        DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig,
        general_purpose::{PAD, STANDARD},
    },
};
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// As in Go, unused bits of the last character do not have to be zero.
const LENIENT: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT_CONFIG);
const LENIENT_CONFIG: GeneralPurposeConfig =
    PAD.with_decode_allow_trailing_bits(true).with_decode_padding_mode(DecodePaddingMode::RequireCanonical);

/// Decodes base64 as Go does: the standard alphabet, with padding, line breaks anywhere.
pub fn from_base64(text: &str) -> Result<Vec<u8>, DecodeError> {
    let broken = |byte: &u8| matches!(byte, b'\r' | b'\n');
    if !text.as_bytes().iter().any(broken) {
        return LENIENT.decode(text);
    }
    LENIENT.decode(text.bytes().filter(|byte| !broken(byte)).collect::<Vec<u8>>())
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    match Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)? {
        None => Ok(Vec::new()),
        Some(text) => from_base64(&text).map_err(|_| D::Error::custom("invalid base64")),
    }
}
