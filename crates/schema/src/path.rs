//! Paths of fields in objects and schemas, built on the stack while walking and rendered only when an error is found.

use std::fmt;

/// One step of a walk. `parent` links back to the root, so descending does not allocate.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Segment<'a> {
    Root,
    Child(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The object itself.
    pub const fn root() -> Path<'static> {
        Path { parent: None, segment: Segment::Root }
    }

    /// A path that starts with an already rendered prefix such as `spec.validation.openAPIV3Schema`.
    pub const fn at(prefix: &'a str) -> Path<'a> {
        Path { parent: None, segment: Segment::Child(prefix) }
    }

    /// `self.name`
    pub const fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: Some(self), segment: Segment::Child(name) }
    }

    /// `self[key]`
    pub const fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), segment: Segment::Key(key) }
    }

    /// `self[index]`
    pub const fn index(&self, index: usize) -> Path<'_> {
        Path { parent: Some(self), segment: Segment::Index(index) }
    }

    /// True for the root path.
    pub fn is_root(&self) -> bool {
        matches!(self.segment, Segment::Root)
    }

    /// The form used in errors: like upstream, an empty path is `<nil>`.
    pub fn field(&self) -> String {
        if self.is_root() { "<nil>".to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chain = Vec::with_capacity(8);
        let mut at = Some(self);
        while let Some(path) = at {
            chain.push(path.segment);
            at = path.parent;
        }
        let mut empty = true;
        for segment in chain.iter().rev() {
            match segment {
                Segment::Root => continue,
                Segment::Child(name) if empty => f.write_str(name)?,
                Segment::Child(name) => write!(f, ".{name}")?,
                Segment::Key(key) => write!(f, "[{key}]")?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
            empty = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Path;

    #[test]
    fn renders_children_keys_and_indexes_as_upstream_does() {
        let root = Path::root();
        let spec = root.child("spec");
        let list = spec.child("list");
        let first = list.index(0);
        assert_eq!(first.child("name").to_string(), "spec.list[0].name");
        assert_eq!(spec.key("a.b").to_string(), "spec[a.b]");
        assert_eq!(root.field(), "<nil>");
    }
}
