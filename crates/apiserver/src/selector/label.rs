//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`.

use serde_json::{Map, Value};

use crate::storage::Meta;

/// A parsed label selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    Absent,
    Greater,
    Less,
}

impl LabelSelector {
    /// Parses a selector; the error is the message for the client.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: text };
        let mut requirements = Vec::new();
        parser.skip();
        while !parser.rest.is_empty() {
            requirements.push(parser.requirement()?);
            parser.skip();
            if parser.rest.is_empty() {
                break;
            }
            if !parser.eat(',') {
                return Err(format!("found {:?}, expected: ',' or end of selector", parser.rest));
            }
            parser.skip();
            if parser.rest.is_empty() {
                return Err("found '', expected: identifier after ','".into());
            }
        }
        Ok(Self { requirements })
    }

    /// A selector that requires exactly these labels.
    pub fn equal_to<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let requirements = labels.into_iter().map(|(key, value)| Requirement {
            key: key.into(),
            operator: Operator::In,
            values: vec![value.into()],
        });
        Self { requirements: requirements.collect() }
    }

    /// Converts the selector of an object's field: `matchLabels` and `matchExpressions`.
    pub fn from_object(selector: &Map<String, Value>) -> Result<Self, String> {
        let text =
            |value: &Value| value.as_str().map(str::to_owned).ok_or(format!("{value} is not a string"));
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let values = vec![text(value)?];
            requirements.push(Requirement { key: key.clone(), operator: Operator::In, values });
        }
        for term in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let operator = match term["operator"].as_str().unwrap_or_default() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::Absent,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let values =
                term["values"].as_array().into_iter().flatten().map(text).collect::<Result<_, _>>()?;
            requirements.push(Requirement { key: text(&term["key"])?, operator, values });
        }
        Ok(Self { requirements })
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with this metadata matches.
    pub fn matches(&self, meta: &Meta) -> bool {
        self.matches_with(|key| meta.label(key))
    }

    /// Whether the labels returned by a lookup match.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(lookup(&requirement.key)))
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        match (self.operator, value) {
            (Operator::In, Some(value)) => self.values.iter().any(|v| v == value),
            (Operator::In, None) => false,
            (Operator::NotIn, Some(value)) => self.values.iter().all(|v| v != value),
            (Operator::NotIn | Operator::Absent, None) => true,
            (Operator::Exists, value) => value.is_some(),
            (Operator::Absent, Some(_)) => false,
            (Operator::Greater | Operator::Less, value) => {
                let (Some(left), Some(right)) =
                    (value.and_then(number), self.values.first().and_then(|v| number(v)))
                else {
                    return false;
                };
                if self.operator == Operator::Greater { left > right } else { left < right }
            }
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | '=' | '!' | '(' | ')' | '>' | '<'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.eat('!');
        self.skip();
        let key = self.word();
        if key.is_empty() {
            return Err(format!("found {:?}, expected: identifier", self.rest));
        }
        crate::validation::label_key(key).map_err(|why| format!("key: Invalid value: {key:?}: {why}"))?;
        let make = |operator, values: Vec<String>| Ok(Requirement { key: key.into(), operator, values });
        if negated {
            return make(Operator::Absent, Vec::new());
        }
        self.skip();
        if self.rest.is_empty() || self.rest.starts_with(',') {
            return make(Operator::Exists, Vec::new());
        }
        if self.eat('!') {
            if !self.eat('=') {
                return Err(format!("found {:?}, expected: '='", self.rest));
            }
            return make(Operator::NotIn, vec![self.value()?]);
        }
        if self.eat('=') {
            self.eat('=');
            return make(Operator::In, vec![self.value()?]);
        }
        for (sign, operator) in [('>', Operator::Greater), ('<', Operator::Less)] {
            if self.eat(sign) {
                let value = self.value()?;
                if value.parse::<i64>().is_err() {
                    return Err(format!(
                        "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                    ));
                }
                return make(operator, vec![value]);
            }
        }
        let operator = match self.word() {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            other => return Err(format!("found {other:?}, expected: in, notin, =, ==, !=, gt, lt")),
        };
        self.skip();
        let values = self.set()?;
        make(operator, values)
    }

    fn value(&mut self) -> Result<String, String> {
        self.skip();
        let value = self.word();
        crate::validation::label_value(value)
            .map_err(|why| format!("values[0]: Invalid value: {value:?}: {why}"))?;
        Ok(value.into())
    }

    fn set(&mut self) -> Result<Vec<String>, String> {
        if !self.eat('(') {
            return Err(format!("found {:?}, expected: '('", self.rest));
        }
        let mut values = Vec::new();
        loop {
            values.push(self.value()?);
            self.skip();
            if self.eat(')') {
                return Ok(values);
            }
            if !self.eat(',') {
                return Err(format!("found {:?}, expected: ',' or ')'", self.rest));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let parsed = LabelSelector::parse(selector).unwrap();
        parsed.matches_with(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn every_operator() {
        let labels = [("a", "b"), ("n", "5"), ("x.io/y", "z")];
        for yes in [
            "",
            "a",
            "a=b",
            "a==b",
            "a!=c",
            "a in (b,c)",
            "a notin (c)",
            "!q",
            "q!=1",
            "q notin (1)",
            "n>4",
            "n<6",
            "x.io/y=z,a=b",
            " a = b , n ",
            "q notin ()",
            "a in ( b )",
        ] {
            assert!(matches(yes, &labels), "{yes}");
        }
        for no in ["q", "a=c", "a!=b", "!a", "a in (c)", "n>5", "q in (1)", "a=b,q", "a="] {
            assert!(!matches(no, &labels), "{no}");
        }
    }

    #[test]
    fn malformed_selectors_are_rejected() {
        for bad in ["=a", "a in b", "a in (b", "a=b,", "a b", "n>x", "a/b/c=d", ",", "a=*"] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }
}
