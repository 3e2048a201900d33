//! The fields of the built-in kinds, parsed once from `table.txt`, which `tools/prototable` generates.
//!
//! A line is `kind <apiVersion> <Kind> <type>` or `type <name> <number>:<json name><?>:<form>…`. An empty name
//! means that the fields of the message belong to the parent; `?` that an empty value is left out. Forms are `s b i d
//! y` (string, boolean, integer, double, bytes), `@type`, `[form` and `{form` (list, map from strings), `items` (a
//! message around a list of strings), and types that JSON writes in their own way.

use std::collections::HashMap;
use std::sync::OnceLock;

const TEXT: &str = include_str!("table.txt");

pub(super) type TypeId = usize;

pub(super) struct Field {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) omit_empty: bool,
    pub(super) form: Form,
}

#[derive(Clone, Debug)]
pub(super) enum Form {
    Text,
    Bool,
    Integer,
    Double,
    Bytes,
    Message(TypeId),
    List(Box<Form>),
    Map(Box<Form>),
    Items,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    Raw,
}

struct Table {
    kinds: HashMap<(&'static str, &'static str), TypeId>,
    types: Vec<Vec<Field>>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(read)
}

/// The type of a kind.
pub(super) fn kind(api_version: &str, kind: &str) -> Option<TypeId> {
    let kinds = &table().kinds;
    kinds.get(&(api_version, kind)).or_else(|| kinds.get(&("*", kind))).copied()
}

/// The fields of a type.
pub(super) fn fields(of: TypeId) -> &'static [Field] {
    table().types.get(of).map_or(&[], Vec::as_slice)
}

fn read() -> Table {
    let lines = || TEXT.lines().filter(|line| !line.starts_with('#'));
    let names: HashMap<&str, TypeId> = lines()
        .filter_map(|line| line.strip_prefix("type ")?.split(' ').next())
        .enumerate()
        .map(|(at, name)| (name, at))
        .collect();
    let types = lines()
        .filter_map(|line| line.strip_prefix("type "))
        .map(|line| line.split(' ').skip(1).filter_map(|field| read_field(field, &names)).collect())
        .collect();
    let kinds = lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("kind ")?.split(' ');
            let (api_version, kind, of) = (words.next()?, words.next()?, words.next()?);
            Some(((api_version, kind), *names.get(of)?))
        })
        .collect();
    Table { kinds, types }
}

fn read_field(text: &'static str, names: &HashMap<&str, TypeId>) -> Option<Field> {
    let mut parts = text.splitn(3, ':');
    let number = parts.next()?.parse().ok()?;
    let name = parts.next()?;
    let form = read_form(parts.next()?, names)?;
    let (name, omit_empty) = match name.strip_suffix('?') {
        Some(name) => (name, true),
        None => (name, false),
    };
    Some(Field { number, name, omit_empty, form })
}

fn read_form(text: &str, names: &HashMap<&str, TypeId>) -> Option<Form> {
    if let Some(inner) = text.strip_prefix('[') {
        return Some(Form::List(Box::new(read_form(inner, names)?)));
    }
    if let Some(inner) = text.strip_prefix('{') {
        return Some(Form::Map(Box::new(read_form(inner, names)?)));
    }
    if let Some(name) = text.strip_prefix('@') {
        return names.get(name).map(|id| Form::Message(*id));
    }
    Some(match text {
        "s" => Form::Text,
        "b" => Form::Bool,
        "i" => Form::Integer,
        "d" => Form::Double,
        "y" => Form::Bytes,
        "items" => Form::Items,
        "time" => Form::Time,
        "microtime" => Form::MicroTime,
        "quantity" => Form::Quantity,
        "intorstring" => Form::IntOrString,
        "raw" => Form::Raw,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_valid() {
        let mut fields = 0;
        for line in TEXT.lines().filter_map(|line| line.strip_prefix("type ")) {
            fields += line.split(' ').count() - 1;
        }
        let read: usize = table().types.iter().map(Vec::len).sum();
        assert_eq!(fields, read);
        assert!(table().kinds.len() > 50);
    }
}
