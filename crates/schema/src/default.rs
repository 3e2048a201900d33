//! Applies defaults, and drops nulls that have no meaning.

use serde_json::Value;

use crate::structural::Structural;

/// How much memory defaults may add to one object, in bytes. A default in list items is repeated per item, so that a
/// small object could grow to gigabytes.
const ADDED_BYTES: usize = 16 << 20;

/// The defaults would make the object too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of the schema would add more than {} MiB to the object", ADDED_BYTES >> 20)]
pub struct TooManyDefaults;

/// Applies the defaults of `schema` to `value` at all depths.
///
/// A null in a field that is not nullable counts as absent: it is replaced by the default, or dropped if there is none
/// (see [`drop_nulls`]).
pub fn default(value: &mut Value, schema: &Structural) -> Result<(), TooManyDefaults> {
    drop_nulls(value, schema);
    Filler { left: ADDED_BYTES }.fill(value, schema)
}

struct Filler {
    left: usize,
}

impl Filler {
    fn fill(&mut self, value: &mut Value, schema: &Structural) -> Result<(), TooManyDefaults> {
        match value {
            Value::Object(object) => {
                for (name, property) in &schema.properties {
                    let Some(default) = &property.default else { continue };
                    let absent = match object.get(name) {
                        None => true,
                        Some(v) => v.is_null() && !property.nullable,
                    };
                    if absent {
                        object.insert(name.clone(), self.copy(default, name.len())?);
                    }
                }
                for (name, value) in object.iter_mut() {
                    let Some(property) = schema.property(name) else { continue };
                    self.replace_null(value, property)?;
                    self.fill(value, property)?;
                }
            }
            Value::Array(list) => {
                let Some(items) = &schema.items else { return Ok(()) };
                for item in list {
                    self.replace_null(item, items)?;
                    self.fill(item, items)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn replace_null(&mut self, value: &mut Value, schema: &Structural) -> Result<(), TooManyDefaults> {
        if value.is_null()
            && !schema.nullable
            && let Some(default) = &schema.default
        {
            *value = self.copy(default, 0)?;
        }
        Ok(())
    }

    fn copy(&mut self, default: &Value, key: usize) -> Result<Value, TooManyDefaults> {
        let bytes = size_of::<(String, Value)>() + key + memory(default);
        self.left = self.left.checked_sub(bytes).ok_or(TooManyDefaults)?;
        Ok(default.clone())
    }
}

/// The heap memory of a value. A map with one entry has capacity for eleven.
fn memory(value: &Value) -> usize {
    let entry = size_of::<(String, Value)>();
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + memory(item)).sum(),
        Value::Object(fields) if fields.is_empty() => 0,
        Value::Object(fields) => {
            11 * entry + fields.iter().map(|(key, value)| entry + key.len() + memory(value)).sum::<usize>()
        }
        _ => 0,
    }
}

/// Drops null properties whose schema is neither nullable nor defaulted.
pub fn drop_nulls(value: &mut Value, schema: &Structural) {
    match value {
        Value::Object(object) => object.retain(|name, value| {
            let Some(property) = schema.property(name) else { return true };
            if value.is_null() {
                return property.nullable || property.default.is_some();
            }
            drop_nulls(value, property);
            true
        }),
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            list.iter_mut().for_each(|item| drop_nulls(item, items));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::path::Path;
    use crate::structural::parse;

    #[test]
    fn defaults_of_many_items_are_limited() {
        let items =
            json!({"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(1000)}}});
        let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": items}}});
        let mut errors = Vec::new();
        let schema = parse::parse(&schema, &Path::root(), &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        let mut few = json!({"list": vec![json!({}); 100]});
        default(&mut few, &schema).unwrap();
        assert_eq!(few["list"][99]["a"].as_str().unwrap().len(), 1000);
        let mut many = json!({"list": vec![json!({}); 1_000_000]});
        assert_eq!(default(&mut many, &schema), Err(TooManyDefaults));
    }
}
