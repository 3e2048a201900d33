//! The types of the built-in kinds, parsed once from `builtin_types.txt`.
//!
//! A line is `kind <apiVersion> <Kind> <type>`, `type <name> [atomic] [*:<type of other keys>] <field>:<type><marks>…`
//! for a struct, or `type <name> = <type>` for anything else. Types are `s n b u` (string, number, boolean, any
//! scalar), `any`, `deduced`, `@name`, `@!name` (made atomic here), `list(T)`, `set(T)`, `by(key,…;T)`, `map(T)` and
//! `atomicmap(T)`. Marks are `+` (never absent), `~key`, `~`, `~!` (patches merge by key, merge as a set, replace) and
//! `=json` (the default of a key field).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use drover_smd::schema::{Atom, Field, List, ListKind, Map, PatchStrategy, Scalar, Schema, Type, TypeId};

const TEXT: &str = include_str!("builtin_types.txt");

/// The built-in types.
pub(super) struct Builtin {
    schema: Schema,
    kinds: HashMap<(&'static str, &'static str), TypeId>,
    object_meta: TypeId,
}

impl Builtin {
    /// The single table.
    pub(super) fn get() -> &'static Self {
        static TABLE: OnceLock<Builtin> = OnceLock::new();
        TABLE.get_or_init(|| Reader::read(TEXT))
    }

    /// The type of a kind.
    pub(super) fn kind(&self, api_version: &str, kind: &str) -> Option<Type<'_>> {
        self.kinds.get(&(api_version, kind)).map(|id| Type { schema: &self.schema, id: *id })
    }

    /// The type for kinds that are not in the table: only metadata is known.
    pub(super) fn unknown_kind(&self) -> (Schema, TypeId) {
        let mut schema = self.schema.clone();
        let string = schema.scalar(Scalar::String);
        let mut fields = vec![Field::new("metadata", self.object_meta)];
        fields.extend(["apiVersion", "kind"].map(|name| Field::new(name, string)));
        let id = schema.map(Map::new(fields, Some(TypeId::DEDUCED), false));
        (schema, id)
    }
}

struct Reader {
    schema: Schema,
    names: HashMap<&'static str, TypeId>,
}

impl Reader {
    fn read(text: &'static str) -> Builtin {
        let mut reader = Self { schema: Schema::new(), names: HashMap::new() };
        let lines = || text.lines().filter_map(|line| line.split_once(' '));
        for (_, rest) in lines().filter(|(word, _)| *word == "type") {
            let name = rest.split(' ').next().unwrap_or_default();
            let id = reader.schema.declare();
            reader.names.insert(name, id);
        }
        // Plain types first: a struct may use a modified copy of one.
        let mut structs: Vec<&'static str> =
            lines().filter(|(word, _)| *word == "type").map(|(_, rest)| rest).collect();
        structs.sort_by_key(|rest| rest.contains('!'));
        for rest in structs {
            reader.define(rest);
        }
        let mut kinds = HashMap::new();
        for (_, rest) in lines().filter(|(word, _)| *word == "kind") {
            let mut words = rest.split(' ');
            if let (Some(version), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) {
                kinds.insert((version, kind), reader.name(name));
            }
        }
        let object_meta = reader.name("meta.v1.ObjectMeta");
        Builtin { schema: reader.schema, kinds, object_meta }
    }

    fn name(&self, name: &str) -> TypeId {
        self.names.get(name).copied().unwrap_or(TypeId::DEDUCED)
    }

    fn define(&mut self, rest: &'static str) {
        let mut words = rest.split(' ').peekable();
        let name = words.next().unwrap_or_default();
        let id = self.name(name);
        if words.next_if_eq(&"=").is_some() {
            let (target, _) = self.parse(words.next().unwrap_or("any"));
            let atom = self.schema.atom(target).clone();
            self.schema.define(id, atom);
            return;
        }
        let atomic = words.next_if_eq(&"atomic").is_some();
        let mut element = None;
        let mut fields = Vec::new();
        for word in words {
            let Some((field, ty)) = word.split_once(':') else { continue };
            let (ty, marks) = self.parse(ty);
            if field == "*" {
                element = Some(ty);
                continue;
            }
            let mut field = marked(Field::new(field, ty), marks);
            field.untracked = name == "meta.v1.ObjectMeta" && &*field.name == "managedFields";
            fields.push(field);
        }
        self.schema.define(id, Atom { map: Some(Map::new(fields, element, atomic)), ..Atom::default() });
    }

    /// Parses a type; returns the rest of the text.
    fn parse(&mut self, text: &'static str) -> (TypeId, &'static str) {
        let end = text.find(['(', ')', '+', '~', '=']).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        if let Some(name) = word.strip_prefix("@!") {
            return (self.schema.with_atomic(self.name(name), true), rest);
        }
        if let Some(name) = word.strip_prefix('@') {
            return (self.name(name), rest);
        }
        let Some(inner) = rest.strip_prefix('(') else {
            let id = match word {
                "s" => self.schema.scalar(Scalar::String),
                "n" => self.schema.scalar(Scalar::Numeric),
                "b" => self.schema.scalar(Scalar::Boolean),
                "u" => self.schema.scalar(Scalar::Untyped),
                "any" => TypeId::UNTYPED_ATOMIC,
                _ => TypeId::DEDUCED,
            };
            return (id, rest);
        };
        let (keys, inner) = match (word, inner.split_once(';')) {
            ("by", Some((keys, inner))) => (keys, inner),
            _ => ("", inner),
        };
        let (element, rest) = self.parse(inner);
        let rest = rest.strip_prefix(')').unwrap_or(rest);
        let list = |kind| Atom { list: Some(List { element, kind }), ..Atom::default() };
        let map = |atomic| Atom { map: Some(Map::new(Vec::new(), Some(element), atomic)), ..Atom::default() };
        let atom = match word {
            "list" => list(ListKind::Atomic),
            "set" => list(ListKind::Set),
            "by" => list(ListKind::Map(keys.split(',').map(Arc::from).collect())),
            "atomicmap" => map(true),
            _ => map(false),
        };
        (self.schema.add(atom), rest)
    }
}

fn marked(mut field: Field, marks: &str) -> Field {
    let (marks, default) = match marks.split_once('=') {
        Some((before, default)) => (before, Some(default)),
        None => (marks, None),
    };
    field.default = default.and_then(|default| serde_json::from_str(default).ok());
    field.always_present = marks.starts_with('+');
    field.patch = match marks.trim_start_matches('+').strip_prefix('~') {
        None => PatchStrategy::Default,
        Some("") => PatchStrategy::MergeSet,
        Some("!") => PatchStrategy::Replace,
        Some(key) => PatchStrategy::MergeBy(key.into()),
    };
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'s>(ty: Type<'s>, path: &str) -> &'s Field {
        let mut atom = ty.schema.atom(ty.id);
        let mut found = None;
        for name in path.split('.') {
            if let Some(list) = &atom.list {
                atom = ty.schema.atom(list.element);
            }
            let field = atom.map.as_ref().unwrap().field(name).unwrap_or_else(|| panic!("{name} in {path}"));
            atom = ty.schema.atom(field.ty);
            found = Some(field);
        }
        found.unwrap()
    }

    #[test]
    fn lists_of_a_deployment_match_upstream() {
        let deployment = Builtin::get().kind("apps/v1", "Deployment").unwrap();
        let containers = at(deployment, "spec.template.spec.containers");
        assert_eq!(containers.patch, PatchStrategy::MergeBy("name".into()));
        assert!(containers.always_present);
        let ports = at(deployment, "spec.template.spec.containers.ports");
        assert_eq!(ports.patch, PatchStrategy::MergeBy("containerPort".into()));
        let list = deployment.schema.atom(ports.ty).list.as_ref().unwrap();
        assert_eq!(list.kind, ListKind::Map(Arc::from([Arc::from("containerPort"), Arc::from("protocol")])));
        let protocol = at(deployment, "spec.template.spec.containers.ports.protocol");
        assert_eq!(protocol.default, Some("TCP".into()));
        assert_eq!(at(deployment, "metadata.finalizers").patch, PatchStrategy::MergeSet);
        assert!(at(deployment, "metadata.managedFields").untracked);
        let tolerations = at(deployment, "spec.template.spec.tolerations");
        assert_eq!(deployment.schema.atom(tolerations.ty).list.as_ref().unwrap().kind, ListKind::Atomic);
        let selector = at(deployment, "spec.selector");
        assert!(deployment.schema.atom(selector.ty).map.as_ref().unwrap().atomic);
    }

    #[test]
    fn every_kind_has_metadata_and_every_name_is_defined() {
        let builtin = Builtin::get();
        assert!(builtin.kinds.len() > 50);
        for ((version, kind), id) in &builtin.kinds {
            let ty = Type { schema: &builtin.schema, id: *id };
            assert!(at(ty, "metadata.labels").default.is_none(), "{version} {kind}");
        }
        let known: Vec<&str> =
            TEXT.lines().filter_map(|l| l.strip_prefix("type ")?.split(' ').next()).collect();
        for reference in TEXT.split('@').skip(1) {
            let name =
                reference.trim_start_matches('!').split([' ', ')', '+', '~', '=', '\n']).next().unwrap();
            assert!(known.contains(&name), "{name} is used but not defined");
        }
    }
}
