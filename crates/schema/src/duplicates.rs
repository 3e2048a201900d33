//! Finds duplicate keys in JSON bodies, which parsing into maps drops silently.

use std::collections::HashSet;
use std::fmt;

use serde_json::de::Deserializer;

/// Paths of keys that occur more than once in an object, like `spec.x` or `spec.list[0].y`, without repetitions.
///
/// Returns nothing for text that is not JSON; the actual parser reports that.
pub fn find(json: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut path = String::new();
    let mut deserializer = Deserializer::from_slice(json);
    let _ = serde::de::DeserializeSeed::deserialize(
        Walk { path: &mut path, found: &mut found },
        &mut deserializer,
    );
    found
}

struct Walk<'a> {
    path: &'a mut String,
    found: &'a mut Vec<String>,
}

impl<'de> serde::de::DeserializeSeed<'de> for Walk<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> serde::de::Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let length = self.path.len();
        let mut index = 0;
        loop {
            self.path.push_str(&format!("[{index}]"));
            let next = seq.next_element_seed(Walk { path: self.path, found: self.found })?;
            self.path.truncate(length);
            if next.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        let length = self.path.len();
        while let Some(key) = map.next_key::<String>()? {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&key);
            if !seen.insert(key) && !self.found.contains(self.path) {
                self.found.push(self.path.clone());
            }
            map.next_value_seed(Walk { path: self.path, found: self.found })?;
            self.path.truncate(length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_duplicates_at_any_depth() {
        let json = br#"{"a":1,"spec":{"x":1,"y":[{"z":1,"z":2}],"x":2,"x":3},"a":null}"#;
        assert_eq!(super::find(json), ["spec.y[0].z", "spec.x", "a"]);
        assert!(super::find(b"{").is_empty());
    }
}
