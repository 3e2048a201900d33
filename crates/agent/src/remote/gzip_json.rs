//! The compressed maps in the secret: gzip around JSON, with nothing in the header that changes by itself.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// A map that grew beyond this is not one of ours.
const LIMIT: u64 = 16 * 1024 * 1024;

/// Compresses. The header carries no time, so equal values give equal bytes.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let compress = || -> std::io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&drover_plan::to_vec(value)?)?;
        encoder.finish()
    };
    // Writing into memory cannot fail, nor can our maps.
    compress().unwrap_or_default()
}

/// Reads a map. Absent, empty or broken is an empty map: earlier output must not stop a plan.
pub fn decode<T: DeserializeOwned + Default>(bytes: Option<&Vec<u8>>) -> T {
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return T::default() };
    match read(bytes) {
        Ok(value) => value,
        Err(error) => {
            tracing::warn!("earlier output in the plan secret is unreadable and is replaced: {error}");
            T::default()
        }
    }
}

/// Whether a map is there. An empty value is none.
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
    fn equal_maps_give_equal_bytes_and_broken_ones_are_empty() {
        let map = BTreeMap::from([("b".to_owned(), 1), ("a".to_owned(), 2)]);
        assert_eq!(encode(&map), encode(&map));
        assert_eq!(encode(&map)[4..8], [0; 4], "no time in the header");
        assert_eq!(decode::<BTreeMap<String, i32>>(Some(&encode(&map))), map);
        assert!(decode::<BTreeMap<String, i32>>(Some(&b"nonsense".to_vec())).is_empty());
        assert!(decode::<BTreeMap<String, i32>>(None).is_empty());
        // As the original writes what a silent instruction printed.
        let silent = encode(&BTreeMap::from([("a", Some("eA==")), ("b", None)]));
        let read: BTreeMap<String, String> = decode(Some(&silent));
        assert_eq!((read["a"].as_str(), read["b"].as_str()), ("eA==", ""));
    }
}
