//! Adapts a set of paths that was recorded with an older schema to the current one.

use crate::fieldpath::{PathElement, Set, SetBuilder};
use crate::schema::{ListKind, Map, Schema, Shape, Type, TypeId};

/// Moves ownership of fields inside values that have become atomic up to those values. `None` means that the set is
/// unchanged. The change from atomic to granular needs nothing: the owner still owns the whole value.
pub fn reconcile(ty: Type<'_>, set: &Set) -> Option<Set> {
    let atomic_now = visit(ty.schema, ty.id, Some(set), false).beneath;
    if atomic_now.is_empty() { None } else { Some(set.recursive_difference(&atomic_now).union(&atomic_now)) }
}

/// The paths that have become atomic.
struct Visited {
    itself: bool,
    beneath: Set,
}

fn visit(schema: &Schema, ty: TypeId, set: Option<&Set>, owned_as_one: bool) -> Visited {
    let atom = schema.atom(ty);
    let atomic = |itself| Visited { itself, beneath: Set::new() };
    match atom.shape_of(None) {
        Shape::List(list) => {
            if !owned_as_one && list.kind == ListKind::Atomic {
                return atomic(true);
            }
            visit_beneath(schema, set, |_| Some(list.element))
        }
        Shape::Map(map) => {
            if is_deduced(map) {
                return atomic(false);
            }
            if !owned_as_one && map.atomic {
                return atomic(set.is_some_and(|set| !set.is_empty()));
            }
            visit_beneath(schema, set, |pe| match pe {
                PathElement::Field(name) => map.field(name).map(|field| field.ty).or(map.element),
                _ => map.element,
            })
        }
        Shape::Scalar(_) | Shape::Nothing => atomic(false),
    }
}

fn visit_beneath(schema: &Schema, set: Option<&Set>, ty: impl Fn(&PathElement) -> Option<TypeId>) -> Visited {
    let mut out = SetBuilder::default();
    if let Some(set) = set {
        let mut visit_one = |pe: &PathElement, child: Option<&Set>, owned_as_one| {
            if let Some(ty) = ty(pe) {
                let visited = visit(schema, ty, child, owned_as_one);
                if visited.itself {
                    out.member(pe.clone());
                }
                out.child(pe.clone(), visited.beneath);
            }
        };
        for (pe, child) in &set.children {
            visit_one(pe, Some(child), false);
        }
        for pe in set.members.iter().filter(|pe| set.child(pe).is_none()) {
            visit_one(pe, None, true);
        }
    }
    Visited { itself: false, beneath: out.finish() }
}

/// Maps without declared fields whose items are of unknown type cannot be declared atomic.
fn is_deduced(map: &Map) -> bool {
    map.element == Some(TypeId::DEDUCED) && map.fields().is_empty()
}
