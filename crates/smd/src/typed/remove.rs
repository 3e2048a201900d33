//! Removes fields from a value, or everything else.

use serde_json::Value;

use super::items::path_element;
use crate::fieldpath::{PathElement, Set};
use crate::schema::{ListKind, Schema, Shape, Type, TypeId};

/// `value` without the items of `set`. `None` means that the value has none of them. A container that loses its last
/// item becomes null.
pub fn remove(ty: Type<'_>, value: &Value, set: &Set) -> Option<Value> {
    if set.is_empty() { None } else { Some(take_out(ty.schema, ty.id, value, set)) }
}

/// Keeps only the items of `set`; atomic values are kept as a whole.
pub fn extract(ty: Type<'_>, value: &Value, set: &Set) -> Value {
    keep(ty.schema, ty.id, value, set)
}

fn take_out(schema: &Schema, ty: TypeId, value: &Value, set: &Set) -> Value {
    match (schema.atom(ty).shape_of(Some(value)), value) {
        (Shape::Scalar(_), _) => value.clone(),
        (Shape::List(list), Value::Array(items)) if list.kind != ListKind::Atomic => {
            let mut out = Vec::with_capacity(items.len());
            for item in items {
                let Ok(pe) = path_element(schema, list, item) else {
                    out.push(item.clone());
                    continue;
                };
                if !set.has_member(&pe) {
                    out.push(match beneath(set, &pe) {
                        Some(set) => take_out(schema, list.element, item, set),
                        None => item.clone(),
                    });
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        (Shape::Map(map), Value::Object(entries)) if !map.atomic => {
            let mut out = serde_json::Map::new();
            for (key, value) in entries {
                let field = map.lookup(key);
                let pe = field.element(key);
                if !set.has_member(&pe) {
                    let value = match beneath(set, &pe) {
                        Some(set) => take_out(schema, field.ty, value, set),
                        None => value.clone(),
                    };
                    out.insert(key.clone(), value);
                }
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        _ => Value::Null,
    }
}

fn keep(schema: &Schema, ty: TypeId, value: &Value, set: &Set) -> Value {
    match (schema.atom(ty).shape_of(Some(value)), value) {
        (Shape::List(list), Value::Array(items)) if list.kind != ListKind::Atomic && !items.is_empty() => {
            let mut out = Vec::new();
            for item in items {
                let Ok(pe) = path_element(schema, list, item) else { continue };
                match beneath(set, &pe) {
                    Some(set) => out.push(keep(schema, list.element, item, set)),
                    None if set.has_member(&pe) => out.push(item.clone()),
                    None => {}
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        (Shape::Map(map), Value::Object(entries)) if !map.atomic && !entries.is_empty() => {
            let mut out = serde_json::Map::new();
            for (key, value) in entries {
                let field = map.lookup(key);
                let pe = field.element(key);
                let kept = match beneath(set, &pe) {
                    Some(set) => keep(schema, field.ty, value, set),
                    None if set.has_member(&pe) => value.clone(),
                    None => continue,
                };
                out.insert(key.clone(), kept);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Shape::Nothing, _) => Value::Null,
        _ => value.clone(),
    }
}

fn beneath<'s>(set: &'s Set, pe: &PathElement) -> Option<&'s Set> {
    set.child(pe).map(|child| &**child).filter(|child| !child.is_empty())
}
