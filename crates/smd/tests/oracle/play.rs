//! Executes one step with this crate and renders the state as the Go program does.

use drover_smd::fieldpath::Set;
use drover_smd::managed::{ApplyError, FieldManager, Managed, Versions};
use drover_smd::schema::{Schema, Type, TypeId};
use serde_json::{Value, json};

pub(crate) const GROUP: &str = "oracle.example";
pub(crate) const KIND: &str = "Thing";

pub(crate) struct Kind {
    schema: Schema,
    id: TypeId,
}

impl Kind {
    pub(crate) fn new(openapi: &Value) -> Self {
        let mut schema = Schema::new();
        let meta = schema.add_object_meta();
        let id = schema.add_custom_resource(openapi, meta);
        Self { schema, id }
    }
}

impl Versions for Kind {
    fn type_at(&self, api_version: &str) -> Option<Type<'_>> {
        let known = ["oracle.example/v1", "oracle.example/v2"].contains(&api_version);
        known.then_some(Type { schema: &self.schema, id: self.id })
    }

    fn convert(&self, object: &Value, _: &str, to: &str) -> Result<Value, String> {
        let mut object = object.clone();
        object["apiVersion"] = json!(to);
        Ok(object)
    }
}

/// Returns the new live object, or the conflicts and the error.
pub(crate) fn step(kind: &Kind, live: Option<&Value>, step: &Value) -> Result<Value, (Vec<Value>, String)> {
    let text = |name: &str| step[name].as_str().unwrap();
    let api_version = format!("{GROUP}/{}", text("version"));
    let reset = match text("subresource") {
        "status" => Set::of_fields(&[&["metadata"], &["spec"]]),
        _ => Set::of_fields(&[&["status"]]),
    };
    let manager = FieldManager {
        versions: kind,
        api_version: &api_version,
        kind: KIND,
        subresource: text("subresource"),
        reset_fields: Some(&reset),
    };
    let live = live.map(|live| {
        let mut live = live.clone();
        live["apiVersion"] = json!(api_version);
        live
    });
    let now = 1_700_000_000;
    let mut object = if step["apply"] == true {
        let live = live.unwrap_or_else(|| manager.empty_object());
        let applied = manager.apply(&live, &step["object"], text("manager"), step["force"] == true, now);
        applied.map(|new| new.unwrap_or(live)).map_err(|error| match &error {
            ApplyError::Conflicts(conflicts) => {
                let one =
                    |c: &drover_smd::managed::Conflict| json!({"message": c.message(), "field": c.field()});
                (conflicts.0.iter().map(one).collect(), error.to_string())
            }
            _ => (Vec::new(), error.to_string()),
        })?
    } else {
        let mut object = step["object"].clone();
        let updated = manager.update(live.as_ref(), &mut object, text("manager"), now);
        updated.map_err(|error| (Vec::new(), error.to_string()))?;
        object
    };
    object["metadata"]["uid"] = json!("1");
    Ok(object)
}

/// The state after the step.
pub(crate) fn render(live: Option<&Value>, outcome: &Result<Value, (Vec<Value>, String)>) -> Value {
    let mut out = json!({"object": null, "managed": null});
    if let Err((conflicts, error)) = outcome {
        out["error"] = json!(error);
        if !conflicts.is_empty() {
            out["conflicts"] = crate::normal(&json!(conflicts));
        }
    }
    if let Some(live) = live {
        let managed = Managed::of(live).unwrap();
        if !managed.entries.is_empty() {
            let entry = |e: &drover_smd::managed::Entry| {
                json!({
                    "manager": e.manager,
                    "operation": format!("{:?}", e.operation),
                    "apiVersion": e.api_version,
                    "subresource": e.subresource,
                    "timed": e.time.is_some(),
                    "fields": e.fields.to_json(),
                })
            };
            out["managed"] = crate::normal(&managed.entries.iter().map(entry).collect());
        }
        out["object"] = live.clone();
        out["object"]["metadata"].as_object_mut().unwrap().remove("managedFields");
    }
    out
}
