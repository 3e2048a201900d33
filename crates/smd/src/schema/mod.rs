//! Types, which determine how values are merged: which lists are sets or keyed, and which maps are atomic.
//!
//! A [`Schema`] is an arena of [`Atom`]s; a [`TypeId`] is an index into it. This allows recursive types, makes a lookup
//! an array access, and lets one schema hold all kinds of a group. Types are immutable once built.

mod openapi;

use std::sync::Arc;

use serde_json::Value;

use crate::fieldpath::PathElement;

/// A type within a [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

impl TypeId {
    /// Any scalar, list or map, each one atomic: the type of values inside a list of unknown type.
    pub const UNTYPED_ATOMIC: TypeId = TypeId(0);
    /// The type is deduced from the value: maps are granular, lists are atomic.
    pub const DEDUCED: TypeId = TypeId(1);
}

/// The possible shapes of a type's values. If several alternatives are set, the value determines which one is used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Atom {
    /// The scalar alternative.
    pub scalar: Option<Scalar>,
    /// The list alternative.
    pub list: Option<List>,
    /// The map or struct alternative.
    pub map: Option<Map>,
}

/// A single value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// An integer or a float.
    Numeric,
    /// A string.
    String,
    /// A boolean.
    Boolean,
    /// Any scalar: int-or-string, quantities, timestamps.
    Untyped,
}

/// A list.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// The type of the items.
    pub element: TypeId,
    /// How items are identified.
    pub kind: ListKind,
}

/// How the items of a list are identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// The list is atomic.
    Atomic,
    /// Scalars, identified by value.
    Set,
    /// Maps, identified by these fields; the names are sorted.
    Map(Arc<[Arc<str>]>),
}

/// A map or a struct.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    /// Declared fields, sorted by name.
    fields: Vec<Field>,
    /// The type of all other keys; `None` if no others are allowed.
    pub element: Option<TypeId>,
    /// Whether the map is atomic.
    pub atomic: bool,
}

/// A declared field of a struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The name in JSON; shared by all paths through this field.
    pub name: Arc<str>,
    /// The type of its value.
    pub ty: TypeId,
    /// The default of a key field of an associative list.
    pub default: Option<Value>,
    /// Never merged, compared or owned (managedFields itself).
    pub untracked: bool,
    /// Absent and empty are equivalent, so that no writer owns its appearance (structs that upstream embeds by value).
    pub always_present: bool,
    /// How a strategic merge patch treats it.
    pub patch: PatchStrategy,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PatchStrategy {
    /// Maps are merged, lists replaced.
    #[default]
    Default,
    /// A list of scalars that is merged as a set.
    MergeSet,
    /// A list of maps that is merged by this field.
    MergeBy(Arc<str>),
    /// A map that is replaced.
    Replace,
}

impl Field {
    /// A field without default.
    pub fn new(name: &str, ty: TypeId) -> Self {
        Self {
            name: name.into(),
            ty,
            default: None,
            untracked: false,
            always_present: false,
            patch: PatchStrategy::Default,
        }
    }
}

impl Map {
    /// A map with these declared fields; other keys have the type `element`, if any.
    pub fn new(mut fields: Vec<Field>, element: Option<TypeId>, atomic: bool) -> Self {
        fields.sort_by(|l, r| l.name.cmp(&r.name));
        Self { fields, element, atomic }
    }

    /// The declared field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok().map(|at| &self.fields[at])
    }

    /// All declared fields, sorted by name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Name (shared if declared), type and declaration of `key`. The type of an undeclared key that the schema does not
    /// allow is deduced; [`crate::typed::validate`] rejects such keys.
    pub(crate) fn lookup(&self, key: &str) -> Lookup<'_> {
        let field = self.field(key);
        Lookup { field, ty: field.map_or(self.element.unwrap_or(TypeId::DEDUCED), |field| field.ty) }
    }
}

pub(crate) struct Lookup<'s> {
    field: Option<&'s Field>,
    pub(crate) ty: TypeId,
}

impl Lookup<'_> {
    pub(crate) fn is_declared(&self) -> bool {
        self.field.is_some()
    }

    pub(crate) fn is_always_present(&self) -> bool {
        self.field.is_some_and(|field| field.always_present)
    }

    pub(crate) fn patch(&self) -> &PatchStrategy {
        self.field.map_or(&PatchStrategy::Default, |field| &field.patch)
    }

    pub(crate) fn is_untracked(&self) -> bool {
        self.field.is_some_and(|field| field.untracked)
    }

    pub(crate) fn element(&self, key: &str) -> PathElement {
        PathElement::Field(self.field.map_or_else(|| key.into(), |field| field.name.clone()))
    }
}

/// An arena of types.
#[derive(Clone, Debug)]
pub struct Schema {
    atoms: Vec<Atom>,
}

impl Default for Schema {
    fn default() -> Self {
        Self::new()
    }
}

impl Schema {
    /// A schema with only the two common types.
    pub fn new() -> Self {
        let common = |map_element, atomic| Atom {
            scalar: Some(Scalar::Untyped),
            list: Some(List { element: TypeId::UNTYPED_ATOMIC, kind: ListKind::Atomic }),
            map: Some(Map::new(Vec::new(), Some(map_element), atomic)),
        };
        Self { atoms: vec![common(TypeId::UNTYPED_ATOMIC, true), common(TypeId::DEDUCED, false)] }
    }

    /// Adds a type.
    pub fn add(&mut self, atom: Atom) -> TypeId {
        let id = TypeId(u32::try_from(self.atoms.len()).unwrap_or(u32::MAX));
        self.atoms.push(atom);
        id
    }

    /// Reserves an id, to be defined by [`Schema::define`], so that types can refer to each other.
    pub fn declare(&mut self) -> TypeId {
        self.add(Atom::default())
    }

    /// Defines a reserved id.
    pub fn define(&mut self, id: TypeId, atom: Atom) {
        if let Some(slot) = self.atoms.get_mut(id.0 as usize) {
            *slot = atom;
        }
    }

    /// A scalar type.
    pub fn scalar(&mut self, scalar: Scalar) -> TypeId {
        self.add(Atom { scalar: Some(scalar), ..Atom::default() })
    }

    /// A list type.
    pub fn list(&mut self, element: TypeId, kind: ListKind) -> TypeId {
        self.add(Atom { list: Some(List { element, kind }), ..Atom::default() })
    }

    /// A map or struct type.
    pub fn map(&mut self, map: Map) -> TypeId {
        self.add(Atom { map: Some(map), ..Atom::default() })
    }

    /// Returns the type with its map or list relationship overridden, for one use of the type.
    pub fn with_atomic(&mut self, id: TypeId, atomic: bool) -> TypeId {
        let mut atom = self.atom(id).clone();
        if let Some(map) = &mut atom.map {
            map.atomic = atomic;
        }
        if let Some(list) = &mut atom.list
            && atomic
        {
            list.kind = ListKind::Atomic;
        }
        self.add(atom)
    }

    /// The definition of a type. An id of another schema counts as "any value, atomic".
    pub fn atom(&self, id: TypeId) -> &Atom {
        self.atoms.get(id.0 as usize).unwrap_or(&self.atoms[0])
    }

    /// The type at the next step of a path.
    pub(crate) fn step(&self, ty: TypeId, pe: &PathElement) -> Option<TypeId> {
        let atom = self.atom(ty);
        match pe {
            PathElement::Field(name) => {
                let map = atom.map.as_ref()?;
                map.field(name).map(|field| field.ty).or(map.element)
            }
            PathElement::Key(_) => atom.list.as_ref().map(|list| list.element),
            _ => None,
        }
    }
}

/// A root type and its schema: the argument of the operations in [`crate::typed`].
#[derive(Clone, Copy, Debug)]
pub struct Type<'s> {
    /// The schema of `id`.
    pub schema: &'s Schema,
    /// The type itself.
    pub id: TypeId,
}

/// How to walk a value of a type.
#[derive(Clone, Copy)]
pub(crate) enum Shape<'s> {
    Map(&'s Map),
    Scalar(Scalar),
    List(&'s List),
    Nothing,
}

/// The alternatives of a type that match the value, or all of them if none matches or the value is null.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alternatives(u8);

impl Atom {
    const SCALAR: u8 = 1;
    const LIST: u8 = 2;
    const MAP: u8 = 4;

    pub(crate) fn alternatives(&self, value: Option<&Value>) -> Alternatives {
        let flag = |present: bool, bit| if present { bit } else { 0 };
        let all = flag(self.scalar.is_some(), Self::SCALAR)
            | flag(self.list.is_some(), Self::LIST)
            | flag(self.map.is_some(), Self::MAP);
        let looks = match value {
            None | Some(Value::Null) => all,
            Some(Value::Array(_)) => Self::LIST,
            Some(Value::Object(_)) => Self::MAP,
            Some(_) => Self::SCALAR,
        };
        Alternatives(if all & looks != 0 { all & looks } else { all })
    }

    /// Maps have precedence, then scalars, then lists.
    pub(crate) fn shape(&self, alternatives: Alternatives) -> Shape<'_> {
        match (&self.map, self.scalar, &self.list) {
            (Some(map), ..) if alternatives.0 & Self::MAP != 0 => Shape::Map(map),
            (_, Some(scalar), _) if alternatives.0 & Self::SCALAR != 0 => Shape::Scalar(scalar),
            (.., Some(list)) if alternatives.0 & Self::LIST != 0 => Shape::List(list),
            _ => Shape::Nothing,
        }
    }

    pub(crate) fn shape_of(&self, value: Option<&Value>) -> Shape<'_> {
        self.shape(self.alternatives(value))
    }
}
