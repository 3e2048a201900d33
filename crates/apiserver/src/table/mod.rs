//! Server-side Tables, which `kubectl get` prints.
//!
//! A [`Printer`] has the columns of one kind and computes the cells of an object. [`builtin`] has those of the built-in
//! kinds, [`custom`] creates one from a CRD's `additionalPrinterColumns`. [`Tables`] assembles rows for lists, single
//! objects and watch events.

mod age;
pub mod builtin;
pub mod custom;
pub mod jsonpath;
mod partial;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use age::human_duration;
pub use partial::partial_object_metadata;

use crate::resources::Resource;
use crate::server::{IncludeObject, TableConvertor, TableOptions};
use crate::status::Status;
use crate::storage::Version;

/// One column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Header.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    pub kind: String,
    /// `name` for the column with the object's name, otherwise a hint such as `int32`.
    pub format: String,
    /// The description.
    pub description: String,
    /// 0 is always shown, others only with `-o wide`.
    pub priority: i32,
}

impl Column {
    fn new(name: &str, kind: &str, priority: i32) -> Self {
        Column {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: if name == "Name" { "name".to_owned() } else { String::new() },
            description: String::new(),
            priority,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }
}

/// Columns and cells of a kind.
pub trait Printer: Send + Sync + 'static {
    /// In the order of the cells.
    fn columns(&self) -> &[Column];
    /// One value per column.
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value>;
}

/// The printer of a resource, built-in or custom.
pub fn printer(resource: &Resource) -> &dyn Printer {
    match resource.strategy.custom() {
        Some(kind) => &kind.printer,
        None => builtin::printer(&resource.def.group, &resource.def.kind),
    }
}

/// Creates Tables of all resources.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tables;

impl TableConvertor for Tables {
    fn table(
        &self,
        resource: &Resource,
        objects: &[Arc<Version>],
        options: TableOptions,
    ) -> Result<Value, Status> {
        let printer = printer(resource);
        let rows: Vec<Value> = objects
            .iter()
            .map(|version| {
                let object = version.decode();
                let mut row = Map::new();
                row.insert("cells".to_owned(), Value::Array(printer.cells(&object, options.now)));
                match options.include_object {
                    IncludeObject::None => {}
                    IncludeObject::Metadata => {
                        drop(row.insert("object".to_owned(), partial_object_metadata(&object)))
                    }
                    IncludeObject::Object => drop(row.insert("object".to_owned(), object)),
                }
                Value::Object(row)
            })
            .collect();
        let columns = if options.columns { printer.columns() } else { &[] };
        let definitions: Vec<Value> = columns.iter().map(Column::to_json).collect();
        Ok(json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
            "columnDefinitions": definitions, "rows": rows,
        }))
    }
}
