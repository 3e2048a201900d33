//! RFC 6902 with the errors of upstream.

use serde_json::Value;

use crate::status::Status;

/// More operations than this are refused with 413.
pub const MAX_OPERATIONS: usize = 10_000;

/// Applies a JSON patch. A malformed patch is 400, one that does not apply is 422.
pub fn json_patch(object: &Value, patch: &[u8]) -> Result<Value, Status> {
    let operations: Vec<Value> = serde_json::from_slice(patch)
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        let why = format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(Status::too_large(why));
    }
    let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations))
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    let mut patched = object.clone();
    json_patch::patch(&mut patched, &patch).map_err(|error| {
        Status::unprocessable(format!(
            "the server rejected our request due to an error in our request: {error}"
        ))
    })?;
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_operation_guards_the_rest() {
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
        let patch = format!("[{}]", vec![one; MAX_OPERATIONS + 1].join(","));
        assert_eq!(json_patch(&json!({"a": 1}), patch.as_bytes()).unwrap_err().code, 413);
    }
}
