//! Field selectors: `metadata.name=x,status.phase!=Running`.

use crate::resources::{Resource, SelectableField};
use crate::storage::Version;

/// A parsed field selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Parses a selector; the error is the message for the client. [`Self::check`] validates field names.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            let (field, equal, value) = ["!=", "==", "="]
                .iter()
                .filter_map(|sign| part.split_once(sign).map(|(f, v)| (f, *sign != "!=", v)))
                .min_by_key(|(field, _, _)| field.len())
                .ok_or_else(|| format!("invalid selector: {text:?}; can't understand {part:?}"))?;
            terms.push(Term { field: field.into(), equal, value: unescape(value)? });
        }
        Ok(Self { terms })
    }

    /// A selector for the name of one object.
    pub fn name(name: &str) -> Self {
        Self { terms: vec![Term { field: "metadata.name".into(), equal: true, value: name.into() }] }
    }

    /// Rejects fields that the resource does not support.
    pub fn check(&self, resource: &Resource) -> Result<(), String> {
        for term in &self.terms {
            let known = matches!(term.field.as_str(), "metadata.name" | "metadata.namespace")
                || resource.def.selectable_fields.iter().any(|field| field.label == term.field);
            if !known {
                return Err(format!("field label not supported: {}", term.field));
            }
        }
        Ok(())
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The name that the selector requires, if any.
    pub fn pinned(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// Whether a stored version matches. Decodes the object only for fields other than name and namespace, once.
    pub fn matches(&self, resource: &Resource, version: &Version) -> bool {
        self.terms.iter().all(|term| {
            let equal = match term.field.as_str() {
                "metadata.name" => version.key().name() == term.value,
                "metadata.namespace" => version.key().namespace() == term.value,
                label => {
                    let fields = &resource.def.selectable_fields;
                    let Some(at) = fields.iter().position(|field| field.label == label) else { return false };
                    let values = version.fields(resource.fields_id(), |object| {
                        fields.iter().map(|field: &SelectableField| field.value(object)).collect()
                    });
                    values.get(at).is_some_and(|value| **value == *term.value)
                }
            };
            equal == term.equal
        })
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                _ => return Err(format!("invalid field selector: invalid escape sequence in {value:?}")),
            },
            '=' => return Err(format!("invalid field selector: unescaped = in {value:?}")),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_and_escapes() {
        let parsed = FieldSelector::parse("metadata.name=a,status.phase!=Running,x==b\\,c").unwrap();
        assert_eq!(parsed.pinned("metadata.name"), Some("a"));
        assert_eq!(parsed.pinned("status.phase"), None);
        assert_eq!(parsed.pinned("x"), Some("b,c"));
        assert!(FieldSelector::parse("abc").is_err());
        assert!(FieldSelector::parse("").unwrap().is_empty());
    }
}
