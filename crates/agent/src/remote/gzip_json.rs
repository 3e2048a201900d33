//! Compressed maps in the secret: JSON in gzip, with a constant header.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// The maximum size of an uncompressed map.
const LIMIT: u64 = 16 * 1024 * 1024;

/// Compresses a value. The header contains no time, so equal values have equal bytes.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let compress = || -> std::io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&drover_plan::to_vec(value)?)?;
        encoder.finish()
    };
    // Writing to memory cannot fail, and neither can serializing these maps.
    compress().unwrap_or_default()
}

/// Parses a map. An absent, empty or invalid value is an empty map, because earlier output must not block a plan.
pub fn decode<T: DeserializeOwned + Default>(bytes: Option<&Vec<u8>>) -> T {
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return T::default() };
    match read(bytes) {
        Ok(value) => value,
        Err(error) => {
            tracing::warn!("replacing earlier output in the plan secret, which is invalid: {error}");
            T::default()
        }
    }
}

/// Whether there is a valid map. An empty value is not one.
pub fn is_readable(bytes: Option<&Vec<u8>>) -> bool {
    bytes.is_some_and(|bytes| read::<BTreeMap<String, IgnoredAny>>(bytes).is_ok())
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut text = Vec::new();
    let unpacked = GzDecoder::new(bytes).take(LIMIT).read_to_end(&mut text);
    unpacked.map_err(|error| error.to_string())?;
    drover_plan::from_slice(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_maps_have_equal_bytes_and_invalid_ones_are_empty() {
        let map = BTreeMap::from([("b".to_owned(), 1), ("a".to_owned(), 2)]);
        assert_eq!(encode(&map), encode(&map));
        assert_eq!(encode(&map)[4..8], [0; 4], "no time in the header");
        assert_eq!(decode::<BTreeMap<String, i32>>(Some(&encode(&map))), map);
        assert!(decode::<BTreeMap<String, i32>>(Some(&b"nonsense".to_vec())).is_empty());
        assert!(decode::<BTreeMap<String, i32>>(None).is_empty());
        // The original writes null for an instruction without output.
        let silent = encode(&BTreeMap::from([("a", Some("eA==")), ("b", None)]));
        let read: BTreeMap<String, String> = decode(Some(&silent));
        assert_eq!((read["a"].as_str(), read["b"].as_str()), ("eA==", ""));
    }
}
