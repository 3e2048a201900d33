//! Printers from a CRD's `additionalPrinterColumns`.

use jiff::Timestamp;
use serde_json::Value;

use super::age::since;
use super::jsonpath::JsonPath;
use super::{Column, Printer};
use crate::limits::shortened_to;
use crate::object::ObjectExt;

/// Size limits of one cell, and of all cells of a row. A column can select the whole object, and there can be thousands
/// of columns.
const CELL_BYTES: usize = 16 << 10;
const ROW_BYTES: usize = 256 << 10;

/// Name and the declared columns; if none are declared, Name and Age.
#[derive(Debug)]
pub struct CustomPrinter {
    columns: Vec<Column>,
    paths: Vec<(JsonPath, String)>,
}

impl CustomPrinter {
    /// `declared` is `spec.versions[].additionalPrinterColumns`; columns whose path cannot be parsed are omitted (the
    /// CRD was validated when it was written).
    pub fn new(declared: &[Value]) -> Self {
        let mut printer =
            CustomPrinter { columns: vec![Column::new("Name", "string", 0)], paths: Vec::new() };
        for column in declared {
            let Ok(path) = JsonPath::parse(column.top_str("jsonPath")) else { continue };
            let kind = column.top_str("type").to_owned();
            printer.paths.push((path, kind.clone()));
            printer.columns.push(Column {
                name: column.top_str("name").to_owned(),
                kind,
                format: column.top_str("format").to_owned(),
                description: column.top_str("description").to_owned(),
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0) as i32,
            });
        }
        if declared.is_empty() {
            printer.columns.push(Column::new("Age", "date", 0));
            if let Ok(path) = JsonPath::parse(".metadata.creationTimestamp") {
                printer.paths.push((path, "date".to_owned()));
            }
        }
        printer
    }
}

impl Printer for CustomPrinter {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut cells = Vec::with_capacity(self.columns.len());
        cells.push(object.name().into());
        let mut room = ROW_BYTES;
        for (path, kind) in &self.paths {
            let cell = if room == 0 { Value::Null } else { cell(path, kind, object, now) };
            room = room.saturating_sub(cell.as_str().map_or(size_of::<Value>(), str::len));
            cells.push(cell);
        }
        cells
    }
}

/// An absent value is null, and so is a value that is not of the declared type.
fn cell(path: &JsonPath, kind: &str, object: &Value, now: Timestamp) -> Value {
    let found = path.find(object);
    let Some(first) = found.first() else { return Value::Null };
    match (kind, first) {
        ("date", value) => since(Some(value), now).into(),
        ("integer", Value::Number(n)) => n.as_i64().or(n.as_f64().map(|f| f as i64)).into(),
        ("number", Value::Number(n)) => n.as_f64().into(),
        ("boolean", Value::Bool(b)) => (*b).into(),
        ("string", _) => {
            let mut line = String::new();
            for value in found {
                if !line.is_empty() {
                    line.push(',');
                }
                line.push_str(&text(value));
                if line.len() > CELL_BYTES {
                    return shortened_to(&line, CELL_BYTES).into();
                }
            }
            line.into()
        }
        _ => Value::Null,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}
