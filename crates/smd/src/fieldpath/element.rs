//! One step of a path.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::value;

/// One step of a path. Names are shared: cloning an element does not allocate.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// `f:` a field of a map or struct.
    Field(Arc<str>),
    /// `k:` the item of an associative list whose key fields have these values; sorted by name.
    Key(Arc<[(Arc<str>, Value)]>),
    /// `v:` an item of a set, by its value.
    Value(Arc<Value>),
    /// `i:` an item of a list by index; only in error messages and in old data.
    Index(i64),
}

impl PathElement {
    /// The element for a field called `name`.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The element for a list item with these key fields, in any order.
    pub fn key(mut fields: Vec<(Arc<str>, Value)>) -> Self {
        fields.sort_by(|l, r| l.0.cmp(&r.0));
        Self::Key(fields.into())
    }

    /// The element for an item of a set.
    pub fn value(value: Value) -> Self {
        Self::Value(Arc::new(value))
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(l), Self::Field(r)) => l.cmp(r),
            (Self::Key(l), Self::Key(r)) => l
                .iter()
                .zip(r.iter())
                .map(|((ln, lv), (rn, rv))| ln.cmp(rn).then_with(|| value::compare(lv, rv)))
                .find(|o| o.is_ne())
                .unwrap_or(l.len().cmp(&r.len())),
            (Self::Value(l), Self::Value(r)) => value::compare(l, r),
            (Self::Index(l), Self::Index(r)) => l.cmp(r),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// The display form: `.name`, `[key="a"]`, `[="value"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", value::display(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", value::display(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// The display form of a whole path, for example `.spec.ports[port=80,protocol="TCP"].name`.
pub fn display_path(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}
