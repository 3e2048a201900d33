//! The set of fields in a value.

use serde_json::Value;

use super::items::Groups;
use crate::fieldpath::{PathElement, Set, SetBuilder};
use crate::schema::{List, ListKind, Map, Schema, Shape, Type, TypeId};

/// The set of all leaves and items in `value`: the fields that an applier of it owns. List items without identity are
/// skipped; [`super::validate`] has rejected them in an applied value.
pub fn to_field_set(ty: Type<'_>, value: &Value) -> Set {
    visit(ty.schema, ty.id, value).beneath
}

struct Visited {
    /// The value itself is a leaf.
    leaf: bool,
    beneath: Set,
}

const LEAF: Visited = Visited { leaf: true, beneath: EMPTY };
const NOTHING: Visited = Visited { leaf: false, beneath: EMPTY };
const EMPTY: Set = Set { members: Vec::new(), children: Vec::new() };

fn visit(schema: &Schema, ty: TypeId, value: &Value) -> Visited {
    match (schema.atom(ty).shape_of(Some(value)), value) {
        (Shape::Scalar(_), _) => LEAF,
        (Shape::Map(Map { atomic: true, .. }) | Shape::List(List { kind: ListKind::Atomic, .. }), _) => LEAF,
        (Shape::Map(map), Value::Object(entries)) => visit_map(schema, map, entries),
        (Shape::List(list), Value::Array(items)) => visit_list(schema, list, items),
        _ => NOTHING,
    }
}

fn visit_map(schema: &Schema, map: &Map, entries: &serde_json::Map<String, Value>) -> Visited {
    let mut set = SetBuilder::default();
    for (key, value) in entries {
        let field = map.lookup(key);
        if field.is_untracked() {
            continue;
        }
        let visited = visit(schema, field.ty, value);
        let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
        insert(&mut set, field.element(key), visited, empty || !field.is_declared());
    }
    Visited { leaf: false, beneath: set.finish() }
}

fn visit_list(schema: &Schema, list: &List, items: &[Value]) -> Visited {
    let groups = Groups::of_identified(schema, list, items);
    let mut set = SetBuilder::default();
    for group in groups.iter() {
        let (pe, at) = &group[0];
        // Duplicates are owned as one leaf, without descendants.
        let visited = if group.len() > 1 { NOTHING } else { visit(schema, list.element, &items[*at]) };
        insert(&mut set, pe.clone(), visited, true);
    }
    Visited { leaf: false, beneath: set.finish() }
}

fn insert(set: &mut SetBuilder, pe: PathElement, visited: Visited, itself: bool) {
    if visited.leaf || itself {
        set.member(pe.clone());
    }
    set.child(pe, visited.beneath);
}
