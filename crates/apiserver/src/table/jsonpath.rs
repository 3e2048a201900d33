//! The part of JSONPath that printer columns use: `.spec.a`, `.status.conditions[?(@.type=="Ready")].status`,
//! `.spec.list[0].name`, `.metadata.labels.a\.b\/c`, `.spec.list[*].name`, `['quoted']`, `..name`.

use serde_json::Value;

/// How many values one step of a path may find: `..a..a` finds a value once for each way that leads to it.
const MAX_FOUND: usize = 1_000;
/// How deeply filters may nest.
const MAX_NESTED_FILTERS: usize = 4;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Any,
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    Filter(Vec<Step>, Comparison, Value),
    Exists(Vec<Step>),
    Descend(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl JsonPath {
    /// Parses the form with a leading dot; surrounding braces are allowed.
    pub fn parse(text: &str) -> Result<JsonPath, String> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut parser = Parser { rest: text.strip_prefix('$').unwrap_or(text), filters: 0 };
        let steps = parser.steps(false)?;
        match parser.rest {
            "" => Ok(JsonPath { steps }),
            rest => Err(format!("unexpected {rest:?} in JSONPath {text:?}")),
        }
    }

    /// All values in `value` that the path selects; an absent field is not an error.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        run(&self.steps, value)
    }
}

fn run<'v>(steps: &[Step], value: &'v Value) -> Vec<&'v Value> {
    let mut found = vec![value];
    for step in steps {
        let mut next = Vec::new();
        for value in found {
            apply(step, value, &mut next);
            if next.len() >= MAX_FOUND {
                next.truncate(MAX_FOUND);
                break;
            }
        }
        found = next;
    }
    found
}

fn apply<'v>(step: &Step, value: &'v Value, out: &mut Vec<&'v Value>) {
    match (step, value) {
        (Step::Field(name), _) => out.extend(value.get(name)),
        (Step::Any, Value::Array(list)) => out.extend(list),
        (Step::Any, Value::Object(map)) => out.extend(map.values()),
        (Step::Index(index), Value::Array(list)) => {
            let at = if *index < 0 { list.len() as i64 + index } else { *index };
            out.extend(usize::try_from(at).ok().and_then(|i| list.get(i)));
        }
        (Step::Slice(from, to), Value::Array(list)) => {
            let length = list.len() as i64;
            let clamp = |i: i64| (if i < 0 { length + i } else { i }).clamp(0, length) as usize;
            let (from, to) = (clamp(from.unwrap_or(0)), clamp(to.unwrap_or(length)));
            out.extend(list.get(from..to.max(from)).unwrap_or_default());
        }
        (Step::Filter(path, comparison, wanted), Value::Array(list)) => {
            out.extend(list.iter().filter(|item| {
                run(path, item).first().is_some_and(|found| compare(found, *comparison, wanted))
            }));
        }
        (Step::Exists(path), Value::Array(list)) => {
            out.extend(list.iter().filter(|item| !run(path, item).is_empty()));
        }
        (Step::Descend(name), _) => descend(name, value, out),
        _ => {}
    }
}

fn descend<'v>(name: &str, value: &'v Value, out: &mut Vec<&'v Value>) {
    if out.len() >= MAX_FOUND {
        return;
    }
    match value {
        Value::Object(map) => {
            out.extend(map.get(name));
            map.values().for_each(|v| descend(name, v, out));
        }
        Value::Array(list) => list.iter().for_each(|v| descend(name, v, out)),
        _ => {}
    }
}

fn compare(found: &Value, comparison: Comparison, wanted: &Value) -> bool {
    let order = match (found, wanted) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    match (comparison, order) {
        (Comparison::NotEqual, None) => true,
        (_, None) => false,
        (Comparison::Equal, Some(o)) => o.is_eq(),
        (Comparison::NotEqual, Some(o)) => o.is_ne(),
        (Comparison::Less, Some(o)) => o.is_lt(),
        (Comparison::LessEqual, Some(o)) => o.is_le(),
        (Comparison::Greater, Some(o)) => o.is_gt(),
        (Comparison::GreaterEqual, Some(o)) => o.is_ge(),
    }
}

struct Parser<'t> {
    rest: &'t str,
    /// The nesting depth of filters at the parser's position.
    filters: usize,
}

impl Parser<'_> {
    fn steps(&mut self, in_filter: bool) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix("..") {
                self.rest = rest;
                let name = self.name(in_filter)?;
                steps.push(Step::Descend(name));
            } else if let Some(rest) = self.rest.strip_prefix('.') {
                self.rest = rest;
                if let Some(rest) = self.rest.strip_prefix('*') {
                    self.rest = rest;
                    steps.push(Step::Any);
                } else if !self.rest.starts_with('[') && !self.rest.is_empty() {
                    let name = self.name(in_filter)?;
                    steps.push(Step::Field(name));
                }
            } else if let Some(rest) = self.rest.strip_prefix('[') {
                self.rest = rest;
                steps.push(self.bracket()?);
            } else {
                return Ok(steps);
            }
        }
    }

    fn name(&mut self, in_filter: bool) -> Result<String, String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                '.' | '[' => {
                    end = at;
                    break;
                }
                ' ' | '=' | '!' | '<' | '>' | ')' | ']' if in_filter => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        if name.is_empty() { Err("empty field name in JSONPath".to_owned()) } else { Ok(name) }
    }

    fn bracket(&mut self) -> Result<Step, String> {
        if let Some(rest) = self.rest.strip_prefix("?(") {
            self.rest = rest;
            if self.filters == MAX_NESTED_FILTERS {
                return Err(format!("more than {MAX_NESTED_FILTERS} nested filters in JSONPath"));
            }
            self.filters += 1;
            let step = self.filter()?;
            self.filters -= 1;
            self.expect(")]")?;
            return Ok(step);
        }
        if let Some(rest) = self.rest.strip_prefix("*]") {
            self.rest = rest;
            return Ok(Step::Any);
        }
        if let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')) {
            let text = self.quoted(quote)?;
            self.expect("]")?;
            return Ok(Step::Field(text));
        }
        let end = self.rest.find(']').ok_or("unterminated [ in JSONPath")?;
        let inside = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        let number = |text: &str| match text.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| format!("invalid index {text:?} in JSONPath")),
        };
        match inside.split_once(':') {
            Some((from, to)) => Ok(Step::Slice(number(from)?, number(to)?)),
            None => number(inside)?.map(Step::Index).ok_or_else(|| "empty index in JSONPath".to_owned()),
        }
    }

    fn filter(&mut self) -> Result<Step, String> {
        self.rest = self.rest.trim_start();
        self.expect("@")?;
        let path = self.steps(true)?;
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(')') {
            return Ok(Step::Exists(path));
        }
        let operators = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessEqual),
            (">=", Comparison::GreaterEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let Some((text, comparison)) = operators.into_iter().find(|(text, _)| self.rest.starts_with(text))
        else {
            return Err(format!("unrecognized filter in JSONPath at {:?}", self.rest));
        };
        self.rest = self.rest[text.len()..].trim_start();
        let value = match self.rest.chars().next() {
            Some(quote @ ('\'' | '"')) => Value::String(self.quoted(quote)?),
            _ => {
                let end = self.rest.find(')').ok_or("unterminated filter in JSONPath")?;
                let literal = self.rest[..end].trim();
                self.rest = &self.rest[end..];
                serde_json::from_str(literal)
                    .map_err(|_| format!("invalid literal {literal:?} in JSONPath"))?
            }
        };
        self.rest = self.rest.trim_start();
        Ok(Step::Filter(path, comparison, value))
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let body = &self.rest[1..];
        let mut text = String::new();
        let mut chars = body.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c if c == quote => {
                    self.rest = &body[at + c.len_utf8()..];
                    return Ok(text);
                }
                c => text.push(c),
            }
        }
        Err("unterminated string in JSONPath".to_owned())
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(format!("expected {text:?} in JSONPath at {:?}", self.rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_real_printer_columns() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "spec": {"list": [{"n": 1}, {"n": 2}, {"n": 3}], "deep": {"n": 4}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Paused", "status": "False"}]}
        });
        for (path, wanted) in [
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!(["True"])),
            (r#".status.conditions[?(@.type == 'Paused')].status"#, json!(["False"])),
            (r".metadata.labels.a\.b/c", json!(["x"])),
            (".metadata.labels['a.b/c']", json!(["x"])),
            (".spec.list[1].n", json!([2])),
            (".spec.list[-1].n", json!([3])),
            (".spec.list[*].n", json!([1, 2, 3])),
            (".spec.list[0:2].n", json!([1, 2])),
            (".spec.list[?(@.n>1)].n", json!([2, 3])),
            ("{.spec.deep.n}", json!([4])),
            (".spec.absent.x", json!([])),
            (".spec..n", json!([4, 1, 2, 3])),
        ] {
            let found: Vec<_> =
                JsonPath::parse(path).expect(path).find(&object).into_iter().cloned().collect();
            assert_eq!(Value::Array(found), wanted, "{path}");
        }
        for bad in [".a[", ".a[x]", ".a[?(b==1)]", ".a['x]"] {
            assert!(JsonPath::parse(bad).is_err(), "{bad}");
        }
    }
}
