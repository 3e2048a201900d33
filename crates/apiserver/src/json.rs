//! Decodes JSON into a value, and detects duplicate fields and limits memory while it decodes.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::limits::{STRICT_ERRORS, TooHeavy, Weight, shortened};

/// A decoded body.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    /// Paths of duplicate fields, at most [`STRICT_ERRORS`].
    pub(crate) duplicates: Vec<String>,
}

/// Why decoding failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// Not valid JSON.
    #[error("{0}")]
    Syntax(String),
    /// It exceeds the memory limit.
    #[error(transparent)]
    Heavy(#[from] TooHeavy),
}

/// Decodes JSON text.
pub(crate) fn decode(text: &[u8]) -> Result<Decoded, DecodeError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut heavy = false;
    let decoded =
        decode_from(&mut deserializer, &mut heavy).and_then(|decoded| deserializer.end().map(|()| decoded));
    decoded.map_err(|error| DecodeError::new(error, heavy))
}

/// Decodes from any format; `heavy` is whether the memory limit caused an error.
pub(crate) fn decode_from<'de, D: Deserializer<'de>>(
    deserializer: D,
    heavy: &mut bool,
) -> Result<Decoded, D::Error> {
    let mut state = State::default();
    let value = Node(&mut state).deserialize(deserializer);
    *heavy = state.heavy;
    Ok(Decoded { value: value?, duplicates: state.duplicates })
}

impl DecodeError {
    /// Converts the error of a format.
    pub(crate) fn new(error: impl fmt::Display, heavy: bool) -> Self {
        if heavy { TooHeavy.into() } else { Self::Syntax(error.to_string()) }
    }
}

/// The decoder's position, to report duplicates, and the memory used so far.
#[derive(Default)]
struct State {
    path: Vec<Segment>,
    duplicates: Vec<String>,
    weight: Weight,
    heavy: bool,
}

enum Segment {
    Key(String),
    Index(usize),
}

impl State {
    /// Records the current field.
    fn note_duplicate(&mut self) {
        if self.duplicates.len() >= STRICT_ERRORS {
            return;
        }
        let mut out = String::new();
        for segment in &self.path {
            match segment {
                Segment::Key(key) if out.is_empty() => out.push_str(key),
                Segment::Key(key) => {
                    out.push('.');
                    out.push_str(key);
                }
                Segment::Index(at) => out.push_str(&format!("[{at}]")),
            }
        }
        self.duplicates.push(shortened(&out));
    }

    fn pay<E: Error>(&mut self, what: impl FnOnce(&mut Weight) -> Result<(), TooHeavy>) -> Result<(), E> {
        what(&mut self.weight).map_err(|error| {
            self.heavy = true;
            E::custom(error)
        })
    }
}

struct Node<'a>(&'a mut State);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.pay(|weight| weight.text(value))?;
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.0.pay(|weight| weight.text(&value))?;
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.0.path.push(Segment::Index(items.len()));
            let next = access.next_element_seed(Node(self.0))?;
            self.0.path.pop();
            match next {
                Some(item) => {
                    self.0.pay(Weight::item)?;
                    items.push(item);
                }
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.0.pay(|weight| weight.entry(fields.len(), &key))?;
            self.0.path.push(Segment::Key(key.clone()));
            let value = access.next_value_seed(Node(self.0))?;
            if fields.insert(key, value).is_some() {
                self.0.note_duplicate();
            }
            self.0.path.pop();
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::QUOTED_BYTES;

    #[test]
    fn duplicates_are_reported_and_the_last_one_wins() {
        let decoded = decode(br#"{"spec":{"a":1,"a":2,"l":[{"x":1},{"y":1,"y":2}]}}"#).unwrap();
        assert_eq!(decoded.value["spec"]["a"], 2);
        assert_eq!(decoded.duplicates, ["spec.a", "spec.l[1].y"]);
    }

    #[test]
    fn reported_paths_of_duplicates_are_limited() {
        let text = format!("{{\"{}\":{{{}\"a\":1}}}}", "k".repeat(1 << 20), "\"a\":1,".repeat(10_000));
        let decoded = decode(text.as_bytes()).unwrap();
        assert_eq!(decoded.duplicates.len(), STRICT_ERRORS);
        assert!(decoded.duplicates.iter().all(|path| path.len() < 2 * QUOTED_BYTES));
    }

    #[test]
    fn a_text_of_many_small_objects_exceeds_the_memory_limit() {
        let many = format!("[{}{{}}]", "{\"\":0},".repeat(200_000));
        assert!(matches!(decode(many.as_bytes()), Err(DecodeError::Heavy(_))));
        let few = format!("[{}{{}}]", "{\"name\":\"a name\",\"value\":\"a value\"},".repeat(40_000));
        assert!(decode(few.as_bytes()).is_ok());
    }
}
