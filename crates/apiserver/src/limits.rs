//! Limits of the size of an object, and of the resources that one request may use.
//!
//! A body of a few kilobytes can describe an object of gigabytes (`copy` in a JSON patch, defaults in lists, aliases in
//! YAML), and a body of 3 MiB can decode to a tree that takes a hundred times as much memory. Each kind of growth is
//! limited while the object grows, not afterwards.

use std::io;

use serde_json::Value;

use crate::status::Status;

/// Upstream's `MaxRequestBodyBytes`: larger bodies get 413. Also the limit of a stored object: etcd accepts 1.5 MiB,
/// and upstream allows twice that for JSON.
pub const OBJECT_BYTES: usize = 3 << 20;

/// Upstream's `JSONPatchMaxCopyBytes`: how much all `copy` operations of a patch may add.
pub const COPY_BYTES: usize = 3 << 20;

/// Upstream's `maxJSONPatchOperations`.
pub const PATCH_OPERATIONS: usize = 10_000;

/// The maximum nesting depth of an object. Every reader must accept an object inside a list inside a watch event,
/// `managedFields` nests a few levels deeper than the object, and `serde_json` rejects more than 128 levels.
pub const DEPTH: usize = 100;

/// The maximum memory of a decoded body.
pub const DECODED_BYTES: usize = 64 << 20;

/// How many duplicate or unknown fields are reported, as upstream does.
pub const STRICT_ERRORS: usize = 100;

/// How much of a path or of a value is quoted in a response.
pub const QUOTED_BYTES: usize = 1 << 10;

/// Shortens a text for a response. Otherwise each error that quotes the request could be as large as the request.
pub(crate) fn shortened(text: &str) -> String {
    shortened_to(text, QUOTED_BYTES)
}

/// As [`shortened`], with a custom length.
pub(crate) fn shortened_to(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// The size of a value as compact JSON, without building the text.
pub fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // A JSON value can always be encoded, and the sink never fails.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// The nesting depth of a value; 0 for a scalar. Stops at `most`, so that it is safe for any value. Adds the number of
/// visited values to `nodes`.
pub(crate) fn depth(value: &Value, most: usize, nodes: &mut usize) -> usize {
    *nodes += 1;
    let mut deepest = 0;
    let mut below = |value: &Value| {
        deepest = deepest.max(match most.checked_sub(1) {
            Some(most) => depth(value, most, nodes),
            None => 0,
        });
    };
    match value {
        Value::Object(fields) => fields.values().for_each(&mut below),
        Value::Array(items) => items.iter().for_each(&mut below),
        _ => return 0,
    }
    deepest + 1
}

/// Rejects an object that nests too deeply or takes too much memory.
pub(crate) fn check_shape(value: &Value) -> Result<(), Status> {
    if depth(value, DEPTH, &mut 0) > DEPTH {
        return Err(Status::bad_request(format!("the object nests deeper than {DEPTH} levels")));
    }
    Weight::default().value(value).map_err(Status::from)
}

/// Rejects an object that is too large to be stored.
pub(crate) fn check_stored_bytes(bytes: usize) -> Result<(), Status> {
    if bytes > OBJECT_BYTES {
        return Err(Status::too_large(format!(
            "limit is {OBJECT_BYTES}, the object would have {bytes} bytes"
        )));
    }
    Ok(())
}

/// Counts the memory of a value while it is built.
///
/// A map allocates a node for eleven entries with its first entry, so `{"":0}` takes a hundred times the size of its
/// text.
#[derive(Debug)]
pub(crate) struct Weight {
    left: usize,
}

impl Default for Weight {
    fn default() -> Self {
        Self { left: DECODED_BYTES }
    }
}

impl Weight {
    const VALUE: usize = size_of::<Value>();
    const ENTRY: usize = size_of::<(String, Value)>();
    const MAP: usize = 11 * Self::ENTRY;

    /// Counts a list item; lists grow by doubling.
    pub(crate) fn item(&mut self) -> Result<(), TooHeavy> {
        self.spend(2 * Self::VALUE)
    }

    /// Counts an entry of a map that has `before` others.
    pub(crate) fn entry(&mut self, before: usize, key: &str) -> Result<(), TooHeavy> {
        // Full nodes are split, so nodes are half full on average.
        let node = if before == 0 { Self::MAP } else { 2 * Self::ENTRY };
        self.spend(node + key.len())
    }

    /// Counts a string.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), TooHeavy> {
        self.spend(text.len())
    }

    /// Counts a whole value, whose nesting depth must be limited.
    pub(crate) fn value(&mut self, value: &Value) -> Result<(), TooHeavy> {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().try_for_each(|item| {
                self.item()?;
                self.value(item)
            }),
            Value::Object(fields) => fields.iter().enumerate().try_for_each(|(before, (key, value))| {
                self.entry(before, key)?;
                self.value(value)
            }),
            _ => Ok(()),
        }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), TooHeavy> {
        self.left = self.left.checked_sub(bytes).ok_or(TooHeavy)?;
        Ok(())
    }
}

/// The decoded body would take more than [`DECODED_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the decoded object would take more than {} MiB of memory", DECODED_BYTES >> 20)]
pub(crate) struct TooHeavy;

impl From<TooHeavy> for Status {
    fn from(error: TooHeavy) -> Self {
        Status::too_large(error)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_and_depth_match_the_text() {
        for value in [json!(null), json!({}), json!({"a": [1, "ü\n", {"b": 1.5}]}), json!([[[]]])] {
            assert_eq!(json_bytes(&value), value.to_string().len());
        }
        let depths = [json!(1), json!([]), json!({"a": 1}), json!({"a": [1, {"b": []}]})];
        assert_eq!(depths.map(|value| depth(&value, 10, &mut 0)), [0, 1, 1, 4]);
        let mut deep = json!(1);
        for _ in 0..1_000 {
            deep = json!([deep]);
        }
        assert_eq!(depth(&deep, 10, &mut 0), 11);
        assert_eq!(check_shape(&deep).unwrap_err().code, 400);
    }
}
