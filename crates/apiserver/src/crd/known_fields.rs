//! Unknown fields of a CRD object: dropped, and reported for `fieldValidation`.

use drover_smd::schema::{Type, TypeId};
use serde_json::Value;

use crate::object::ObjectExt;
use crate::patch::builtin_type;

/// Drops fields that the type of the object's apiVersion and kind does not declare; returns their paths.
pub(super) fn prune(object: &mut Value) -> Vec<String> {
    let Some(of) = builtin_type(object.api_version(), object.kind()) else { return Vec::new() };
    let mut unknown = Vec::new();
    walk(object, of, "", &mut unknown);
    unknown
}

fn walk(value: &mut Value, Type { schema, id }: Type<'_>, path: &str, unknown: &mut Vec<String>) {
    // Types that accept any value (defaults, enumerations) declare no fields.
    if id == TypeId::DEDUCED || id == TypeId::UNTYPED_ATOMIC {
        return;
    }
    let atom = schema.atom(id);
    match (value, &atom.map, &atom.list) {
        (Value::Object(object), Some(map), _) => {
            let mut dropped = Vec::new();
            for (name, value) in object.iter_mut() {
                let below = map.field(name).map(|f| f.ty).or(map.element);
                let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match below {
                    Some(id) => walk(value, Type { schema, id }, &at, unknown),
                    None => {
                        dropped.push(name.clone());
                        unknown.push(at);
                    }
                }
            }
            dropped.iter().for_each(|name| drop(object.remove(name)));
        }
        (Value::Array(list), _, Some(of)) => {
            for (i, item) in list.iter_mut().enumerate() {
                if item.is_object() || item.is_array() {
                    walk(item, Type { schema, id: of.element }, &format!("{path}[{i}]"), unknown);
                }
            }
        }
        _ => {}
    }
}
