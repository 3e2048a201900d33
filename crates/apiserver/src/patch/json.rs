//! JSON patches (RFC 6902) with upstream's limits and errors.
//!
//! `copy` can double an object with every operation, so that a patch of 2 KiB could request gigabytes, and an insertion
//! at the front of a long list moves the whole list. Both are counted before they are executed.

use json_patch::{Patch, PatchOperation, jsonptr::Pointer};
use serde_json::Value;

use crate::json::{self, DecodeError};
use crate::limits::{COPY_BYTES, DEPTH, OBJECT_BYTES, PATCH_OPERATIONS, Weight, depth, json_bytes};
use crate::status::Status;

/// How many list items and fields all operations of a patch may touch besides their targets. The largest object that
/// the API accepts has about a million items, and an ordinary patch changes a few.
const MAX_TOUCHED: usize = 50_000_000;

/// Applies a JSON patch. A malformed patch is 400, one that cannot be applied is 422, and one that exceeds a limit is
/// 413 (or 422 for `copy`, as upstream).
pub fn json_patch(object: &Value, patch: &[u8]) -> Result<Value, Status> {
    let operations = match json::decode(patch) {
        Ok(decoded) => decoded.value,
        Err(DecodeError::Heavy(error)) => return Err(error.into()),
        Err(error) => return Err(Status::bad_request(format!("error decoding patch: {error}"))),
    };
    let Value::Array(operations) = operations else {
        return Err(Status::bad_request("error decoding patch: a JSON patch is a list of operations"));
    };
    if operations.len() > PATCH_OPERATIONS {
        let why = format!(
            "The allowed maximum operations in a JSON patch is {PATCH_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(Status::too_large(why));
    }
    let patch: Patch = serde_json::from_value(Value::Array(operations))
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    apply(object, patch)
}

/// Applies decoded operations in order; the cost of each is counted before it is executed.
fn apply(object: &Value, patch: Patch) -> Result<Value, Status> {
    let mut patched = object.clone();
    let mut budget = Budget { copied: 0, weight: Weight::default(), left: MAX_TOUCHED };
    for (at, operation) in patch.0.into_iter().enumerate() {
        budget.pay(&patched, &operation)?;
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(&operation)).map_err(|error| {
            rejected(format!("operation '/{at}' failed at path '{}': {}", error.path, error.kind))
        })?;
    }
    let bytes = json_bytes(&patched);
    if bytes > OBJECT_BYTES {
        return Err(Status::too_large(format!(
            "limit is {OBJECT_BYTES}, the patched object has {bytes} bytes"
        )));
    }
    Ok(patched)
}

fn rejected(why: impl std::fmt::Display) -> Status {
    Status::unprocessable(format!("the server rejected our request due to an error in our request: {why}"))
}

/// The remaining budget of one patch.
struct Budget {
    copied: usize,
    weight: Weight,
    left: usize,
}

impl Budget {
    fn pay(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), Status> {
        match operation {
            PatchOperation::Add(add) => {
                self.shift(object, &add.path)?;
                self.nest(&add.path, &add.value)
            }
            PatchOperation::Replace(replace) => self.nest(&replace.path, &replace.value),
            PatchOperation::Remove(remove) => self.shift(object, &remove.path),
            PatchOperation::Move(moved) => {
                self.shift(object, &moved.from)?;
                self.shift(object, &moved.path)?;
                // The operation itself reports a missing source.
                let Some(source) = object.pointer(moved.from.as_str()) else { return Ok(()) };
                self.nest(&moved.path, source)
            }
            PatchOperation::Copy(copy) => {
                self.shift(object, &copy.path)?;
                let Some(source) = object.pointer(copy.from.as_str()) else { return Ok(()) };
                self.copied = self.copied.saturating_add(json_bytes(source));
                if self.copied > COPY_BYTES {
                    return Err(rejected(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {COPY_BYTES}",
                        self.copied
                    )));
                }
                self.nest(&copy.path, source)?;
                self.weight.value(source).map_err(Status::from)
            }
            PatchOperation::Test(_) => Ok(()),
        }
    }

    /// An insertion into a list, or a removal from it, moves the items behind it.
    fn shift(&mut self, object: &Value, path: &Pointer) -> Result<(), Status> {
        let Some((parent, last)) = path.split_back() else { return Ok(()) };
        let Some(Value::Array(items)) = object.pointer(parent.as_str()) else { return Ok(()) };
        let at = last.decoded().parse().unwrap_or(items.len());
        self.spend(items.len().saturating_sub(at))
    }

    /// A value put at a path adds its depth to that of the path.
    fn nest(&mut self, path: &Pointer, value: &Value) -> Result<(), Status> {
        let mut nodes = 0;
        let depth = path.count() + depth(value, DEPTH, &mut nodes);
        self.spend(nodes)?;
        if depth > DEPTH {
            return Err(rejected(format!("the object would nest deeper than {DEPTH} levels")));
        }
        Ok(())
    }

    fn spend(&mut self, items: usize) -> Result<(), Status> {
        self.left = self.left.checked_sub(items).ok_or_else(|| {
            Status::too_large(format!(
                "the operations of the JSON patch touch more than {MAX_TOUCHED} list items and fields in total"
            ))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_test_operation_rejects_the_patch() {
        let object = json!({"a": {"b": 1}});
        let good = br#"[{"op":"test","path":"/a/b","value":1},{"op":"replace","path":"/a/b","value":2}]"#;
        assert_eq!(json_patch(&object, good).unwrap(), json!({"a": {"b": 2}}));
        let bad = br#"[{"op":"test","path":"/a/b","value":3},{"op":"remove","path":"/a"}]"#;
        assert_eq!(json_patch(&object, bad).unwrap_err().code, 422);
        let missing = br#"[{"op":"remove","path":"/x"}]"#;
        assert_eq!(json_patch(&object, missing).unwrap_err().code, 422);
        assert_eq!(json_patch(&object, b"{}").unwrap_err().code, 400);
        assert_eq!(json_patch(&object, br#"[{"op":"frob","path":"/a"}]"#).unwrap_err().code, 400);
    }

    #[test]
    fn check_39_too_many_operations() {
        let one = r#"{"op":"test","path":"/a","value":1}"#;
        let patch = format!("[{}]", vec![one; PATCH_OPERATIONS + 1].join(","));
        let refused = json_patch(&json!({"a": 1}), patch.as_bytes()).unwrap_err();
        assert_eq!(refused.code, 413);
        assert!(
            refused.message.ends_with("The allowed maximum operations in a JSON patch is 10000, got 10001")
        );
    }

    /// 22 operations used to request more memory than the host has.
    #[test]
    fn copies_are_limited_as_upstream() {
        let copies: Vec<Value> =
            (0..30).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/{n}")})).collect();
        let object = json!({"data": {"a": "x".repeat(300)}});
        let refused = json_patch(&object, json!(copies).to_string().as_bytes()).unwrap_err();
        assert_eq!(refused.code, 422);
        let text = "Unable to complete the copy, the accumulated size increase of copy is ";
        assert!(refused.message.contains(text), "{}", refused.message);
        assert!(refused.message.ends_with(", exceeding the limit 3145728"), "{}", refused.message);
        let few = json!(copies[..5]).to_string();
        assert!(json_patch(&object, few.as_bytes()).is_ok());
    }

    #[test]
    fn a_result_above_the_limit_of_an_object_is_413() {
        let object = json!({"a": "x".repeat(2 << 20)});
        let patch = json!([{"op": "add", "path": "/b", "value": "x".repeat(2 << 20)}]).to_string();
        assert_eq!(json_patch(&object, patch.as_bytes()).unwrap_err().code, 413);
    }

    #[test]
    fn operations_cannot_exceed_the_nesting_limit() {
        let nested: Vec<Value> =
            (1..=DEPTH + 1).map(|n| json!({"op": "add", "path": "/a".repeat(n), "value": {}})).collect();
        assert_eq!(json_patch(&json!({}), json!(nested).to_string().as_bytes()).unwrap_err().code, 422);
        assert!(json_patch(&json!({}), json!(nested[..50]).to_string().as_bytes()).is_ok());
        let moves: Vec<Value> = (0..60)
            .flat_map(|_| {
                [
                    json!({"op": "move", "from": "/a", "path": "/x"}),
                    json!({"op": "add", "path": "/a", "value": {"b": {}}}),
                    json!({"op": "move", "from": "/x", "path": "/a/b/c"}),
                ]
            })
            .collect();
        let object = json!({"a": {"b": {"c": {"d": {}}}}});
        let refused = json_patch(&object, json!(moves).to_string().as_bytes()).unwrap_err();
        assert!(refused.message.contains("nest deeper than"), "{}", refused.message);
    }

    #[test]
    fn insertions_at_the_front_of_a_long_list_are_counted() {
        let object = json!({"l": vec![0; 100_000]});
        let patch = json!(vec![json!({"op": "add", "path": "/l/0", "value": 1}); 9_000]).to_string();
        assert_eq!(json_patch(&object, patch.as_bytes()).unwrap_err().code, 413);
        let patch = json!(vec![json!({"op": "add", "path": "/l/-", "value": 1}); 9_000]).to_string();
        assert!(json_patch(&object, patch.as_bytes()).is_ok());
    }
}
