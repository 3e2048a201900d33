//! Hex digests, and the Go flavour of JSON that hashes of adopted clusters are taken over.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Lowercase hex SHA-256 of the parts, one after the other.
pub fn sha256_hex<I, B>(parts: I) -> String
where
    I: IntoIterator<Item = B>,
    B: AsRef<[u8]>,
{
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_ref());
    }
    hex::encode(hasher.finalize())
}

/// JSON as Go's `encoding/json` writes it: compact, keys sorted, and `<`, `>`, `&`, U+2028 and U+2029
/// escaped. Machine template names end in a hash of these bytes, so one differing byte would replace every
/// node of a cluster that is taken over.
pub fn go_json(value: &Value) -> Vec<u8> {
    // A `Value` has no keys but strings, so writing it cannot fail.
    drover_plan::to_vec(&sorted(value)).unwrap_or_default()
}

/// The same value with the keys of every map in order, whatever kind of map `serde_json` was built with.
pub fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(ordered.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn provisioning_check_5_html_characters_are_escaped_like_go() {
        let value = json!({"b": "<&>", "a": ["\u{2028}", 1, false, null], "c": {"z": "ä\t", "y": 1.5}});
        assert_eq!(
            String::from_utf8(go_json(&value)).unwrap(),
            r#"{"a":["\u2028",1,false,null],"b":"\u003c\u0026\u003e","c":{"y":1.5,"z":"ä\t"}}"#
        );
    }

    #[test]
    fn digest_is_taken_over_the_joined_parts() {
        assert_eq!(sha256_hex(["a", "bc"]), sha256_hex(["abc"]));
        assert_eq!(&sha256_hex([""])[..8], "e3b0c442");
    }
}
