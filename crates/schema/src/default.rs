//! Fills in defaults, and drops nulls where a null says nothing.

use serde_json::Value;

use crate::structural::Structural;

/// Applies the defaults of `schema` to `value`, at any depth.
///
/// A null in a field that is not nullable counts as absent: it becomes the default if there is one and is dropped
/// otherwise (see [`drop_nulls`]).
pub fn default(value: &mut Value, schema: &Structural) {
    drop_nulls(value, schema);
    fill(value, schema);
}

fn fill(value: &mut Value, schema: &Structural) {
    match value {
        Value::Object(object) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                let absent = match object.get(name) {
                    None => true,
                    Some(v) => v.is_null() && !property.nullable,
                };
                if absent {
                    object.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in object.iter_mut() {
                let Some(property) = schema.property(name) else { continue };
                replace_null(value, property);
                fill(value, property);
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for item in list {
                replace_null(item, items);
                fill(item, items);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: &Structural) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}

/// Drops properties that are null although their schema is neither nullable nor defaulted.
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
