//! The largest and the smallest size of a schema's values; the base of cost estimates.

use super::limits::REQUEST;
use crate::structural::{Structural, Type};
use crate::validate::formats::Format;

/// The largest number of items, properties or characters in a value of `schema` that fits in a request.
pub fn max_size(schema: &Structural) -> u64 {
    let value = schema.value.as_deref();
    match schema.kind {
        Some(Type::Array) => value.and_then(|v| v.max_items).unwrap_or_else(|| {
            let item = schema.items.as_deref().map_or(1, min_bytes);
            (REQUEST - 2) / (item + 1)
        }),
        Some(Type::Object) => value.and_then(|v| v.max_properties).unwrap_or_else(|| {
            let item = schema.additional.schema().map_or(1, min_bytes);
            // A key of two quotes and the shortest name, a colon and a comma.
            (REQUEST - 2) / (item + 6)
        }),
        Some(Type::String) | None => {
            if let Some(value) = value {
                if let Some(longest) = value.enumeration.iter().map(|e| e.as_str().map_or(1, str::len)).max()
                {
                    return longest as u64;
                }
                if let Some(max) = value.max_length {
                    return max;
                }
                match value.format {
                    Some(Format::DateTime) => return 30,
                    Some(Format::Date) => return 10,
                    Some(Format::Duration) => return 32,
                    Some(Format::Uuid | Format::Uuid3 | Format::Uuid4 | Format::Uuid5) => return 36,
                    _ => {}
                }
            }
            REQUEST - 2
        }
        Some(Type::Boolean | Type::Integer | Type::Number) => 1,
    }
}

/// The fewest bytes that a value of `schema` takes in a request.
fn min_bytes(schema: &Structural) -> u64 {
    let value = schema.value.as_deref();
    if schema.nullable {
        return 4;
    }
    match schema.kind {
        Some(Type::Boolean) => 4,
        Some(Type::Integer | Type::Number) => 1,
        Some(Type::String) => 2 + value.and_then(|v| v.min_length).unwrap_or(0),
        Some(Type::Array) => {
            let items = schema.items.as_deref().map_or(1, min_bytes);
            2 + value.and_then(|v| v.min_items).unwrap_or(0) * (items + 1)
        }
        Some(Type::Object) => {
            let required = value.map(|v| v.required.as_slice()).unwrap_or_default();
            let fields = required
                .iter()
                .filter_map(|name| Some((name, schema.properties.get(name)?)))
                .filter(|(_, property)| property.default.is_none())
                .map(|(name, property)| name.len() as u64 + 4 + min_bytes(property))
                .sum::<u64>();
            2 + fields
        }
        None => 1,
    }
}
