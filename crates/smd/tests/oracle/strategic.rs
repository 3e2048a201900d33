//! Random strategic merge patches with all directives.

use drover_smd::schema::{Schema, Type};
use drover_smd::strategic::strategic_merge;
use serde_json::{Map, Value, json};

use crate::generate;
use crate::random::Random;

pub(crate) struct Case {
    pub(crate) seed: u64,
    schema: Value,
    object: Value,
    patch: Value,
    pub(crate) merged: Result<Value, String>,
}

impl Case {
    pub(crate) fn question(&self) -> Value {
        json!({"schemas": [self.schema], "strategic": {"object": self.object, "patch": self.patch}})
    }
}

pub(crate) fn case(seed: u64) -> Case {
    let mut r = Random(seed);
    let mut schema = generate::schema(&mut r);
    set_strategies(&mut r, &mut schema);
    let object = generate::value(&mut r, &schema, 0, true);
    let mut patch = generate::value(&mut r, &schema, 0, true);
    add_directives(&mut r, &schema, &object, &mut patch);
    let mut types = Schema::new();
    let meta = types.add_object_meta();
    // Not a custom resource: metadata is as in the schema.
    let id = types.add_custom_resource(&json!({"type": "object", "properties": {"root": schema}}), meta);
    let root = types.atom(id).map.as_ref().unwrap().field("root").unwrap().ty;
    let merged = strategic_merge(Type { schema: &types, id: root }, &object, &patch);
    let merged = merged.map(|merged| clean(&merged)).map_err(|error| error.to_string());
    Case { seed, schema, object, patch, merged }
}

/// Most keyed lists and sets are merged.
fn set_strategies(r: &mut Random, schema: &mut Value) {
    if r.percent(80) {
        match schema["x-kubernetes-list-type"].as_str() {
            Some("map") => {
                schema["x-kubernetes-patch-strategy"] = json!("merge");
                schema["x-kubernetes-patch-merge-key"] = schema["x-kubernetes-list-map-keys"][0].clone();
            }
            Some("set") => schema["x-kubernetes-patch-strategy"] = json!("merge"),
            _ => {}
        }
    }
    for part in ["items", "additionalProperties"] {
        if schema.get(part).is_some_and(Value::is_object) {
            set_strategies(r, &mut schema[part]);
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            set_strategies(r, property);
        }
    }
}

/// Adds directives to a patch.
fn add_directives(r: &mut Random, schema: &Value, object: &Value, patch: &mut Value) {
    let Value::Object(entries) = patch else { return };
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    for (name, property) in &properties {
        let live = object.get(name).unwrap_or(&Value::Null);
        let Some(value) = entries.get_mut(name) else {
            if r.percent(8) {
                entries.insert(name.clone(), Value::Null);
            }
            continue;
        };
        if value.is_object() && live.is_object() {
            add_directives(r, property, live, value);
        }
        let merges = property.get("x-kubernetes-patch-strategy").is_some();
        let key = property["x-kubernetes-patch-merge-key"].as_str();
        if let (true, Value::Array(items), Value::Array(live)) = (merges, value, live) {
            if let Some(key) = key {
                for item in items.iter_mut().filter(|item| item.is_object()) {
                    let same = live.iter().find(|live| live[key] == item[key]);
                    if let (Some(same), true) = (same, r.percent(60)) {
                        add_directives(r, &property["items"], same, item);
                        item[key] = same[key].clone();
                    } else if r.percent(15) {
                        *item = json!({"$patch": *r.pick(&["delete", "delete", "replace"]), key: item[key]});
                    }
                }
            }
            if r.percent(25) {
                let mut order: Vec<Value> = items.clone();
                order.extend(live.iter().filter(|_| live.len() % 2 == 0).cloned());
                order.retain(|item| item.get("$patch").is_none());
                let identity = |item: &Value| key.map_or_else(|| item.clone(), |key| json!({key: item[key]}));
                let mut seen = Vec::new();
                for item in order {
                    if !seen.contains(&identity(&item)) {
                        seen.push(identity(&item));
                    }
                }
                if seen.len() == items.len() || r.percent(50) {
                    entries.insert(format!("$setElementOrder/{name}"), Value::Array(seen));
                }
            } else if key.is_none() && r.percent(25) && !live.is_empty() {
                let doomed = r.pick(live).clone();
                entries.remove(name);
                entries.insert(format!("$deleteFromPrimitiveList/{name}"), json!([doomed]));
            }
        }
    }
    if r.percent(6) {
        let keys: Vec<&String> = entries.keys().filter(|key| !key.starts_with('$')).collect();
        let keys = json!(keys);
        entries.insert("$retainKeys".to_owned(), keys);
    } else if r.percent(4) {
        entries.insert("$patch".to_owned(), json!(*r.pick(&["replace", "delete"])));
    }
}

/// Upstream leaves nulls and directives in values that are new to the object; its decoder drops them later.
pub(crate) fn clean(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let kept = entries.iter().filter(|(key, value)| {
                !key.starts_with('$') && !value.is_null() && value.get("$patch").is_none()
            });
            Value::Object(kept.map(|(key, value)| (key.clone(), clean(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().filter(|item| item.get("$patch").is_none()).map(clean).collect(),
        scalar => scalar.clone(),
    }
}
