//! Random schemas, objects and histories. Names and values come from small pools, so that writers often touch each
//! other's fields.

use serde_json::{Map, Value, json};

use crate::play::{self, GROUP, KIND, Kind};
use crate::random::Random;

pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) schemas: Vec<Value>,
    pub(crate) steps: Vec<Value>,
    pub(crate) outcomes: Vec<Value>,
}

pub(crate) fn case(seed: u64) -> Case {
    let mut r = Random(seed);
    let first = schema(&mut r);
    let mut second = first.clone();
    make_some_atomic(&mut r, &mut second["properties"]["spec"], true);
    let schemas = vec![first, second];
    let kinds: Vec<Kind> = schemas.iter().map(Kind::new).collect();
    let length = 3 + r.below(10);
    let switch_at = if r.percent(20) { r.below(length) } else { length };
    let crowd = r.percent(10);
    // Upstream cannot convert an object with duplicates in its lists to another version; this crate can.
    let versions: &[&str] = if r.percent(40) { &["v1", "v1", "v2"] } else { &["v1"] };
    let style = Style { crowd, versions, duplicates: versions.len() == 1 };
    let (mut steps, mut outcomes) = (Vec::new(), Vec::new());
    let mut live: Option<Value> = None;
    for at in 0..if crowd { length + 10 } else { length } {
        let current = usize::from(at >= switch_at);
        let step = step(&mut r, &schemas[current], current, live.as_ref(), style);
        let outcome = play::step(&kinds[current], live.as_ref(), &step);
        if let Ok(object) = &outcome {
            live = Some(object.clone());
        }
        outcomes.push(play::render(live.as_ref(), &outcome));
        steps.push(step);
    }
    Case { seed, schemas, steps, outcomes }
}

#[derive(Clone, Copy)]
struct Style {
    /// Uses many managers, so that old ones are merged.
    crowd: bool,
    versions: &'static [&'static str],
    /// Writes other than apply may leave duplicates in sets and keyed lists.
    duplicates: bool,
}

fn step(r: &mut Random, schema: &Value, current: usize, live: Option<&Value>, style: Style) -> Value {
    let crowd = style.crowd;
    let apply = r.percent(if crowd { 15 } else { 55 });
    let version = *r.pick(style.versions);
    let subresource = if live.is_some() && r.percent(15) { "status" } else { "" };
    let manager = match (crowd, apply) {
        (true, _) => format!("m{}", r.below(16)),
        (false, true) => (*r.pick(&["dee", "kubectl", "zoe"])).to_owned(),
        (false, false) => (*r.pick(&["dee", "edit", "kubectl", "zoe"])).to_owned(),
    };
    let mut object = match live {
        // A writer other than apply changes the object that it has read.
        Some(live) if !apply => {
            let mut object = live.clone();
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
            mutate(r, schema, &mut object, !style.duplicates);
            object
        }
        _ => {
            let mut object = value(r, schema, 0, apply || !style.duplicates);
            if !object.is_object() {
                object = json!({});
            }
            object
        }
    };
    if apply && let Some(live) = live {
        repeat_live(r, &mut object, live);
    }
    object["apiVersion"] = json!(format!("{GROUP}/{version}"));
    object["kind"] = json!(KIND);
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"]["name"] = json!("thing");
    if !apply && r.percent(4) {
        object["metadata"]["managedFields"] =
            r.pick(&[json!([]), json!([{}]), json!([{"operation": "Nope"}])]).clone();
    }
    if !apply && r.percent(6) {
        let last = value(r, schema, 0, true);
        let mut last = if last.is_object() { last } else { json!({}) };
        last["apiVersion"] = json!(format!("{GROUP}/v1"));
        last["kind"] = json!(KIND);
        last["metadata"] = json!({"name": "thing"});
        last["spec"] = object["spec"].clone();
        let text = last.to_string();
        object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": text});
    }
    json!({
        "schema": current, "version": version, "subresource": subresource, "manager": manager,
        "apply": apply, "force": r.percent(30), "object": object,
    })
}

/// Copies some live values into an applied configuration, for shared ownership.
fn repeat_live(r: &mut Random, config: &mut Value, live: &Value) {
    if let (Value::Object(config), Value::Object(live)) = (config, live) {
        for (key, value) in config.iter_mut() {
            if let Some(live) = live.get(key) {
                if value.is_object() && live.is_object() {
                    repeat_live(r, value, live);
                } else if r.percent(40) && !has_duplicates(live) {
                    *value = live.clone();
                }
            }
        }
    }
}

fn has_duplicates(value: &Value) -> bool {
    let Value::Array(items) = value else { return false };
    items.iter().enumerate().any(|(at, item)| items[..at].contains(item) || item.is_object())
}

pub(crate) fn schema(r: &mut Random) -> Value {
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": object_meta(),
            "spec": structure(r, 0),
            "status": structure(r, 2),
        },
    })
}

fn object_meta() -> Value {
    let string = json!({"type": "string"});
    let strings = json!({"type": "object", "additionalProperties": {"type": "string", "x-never-null": true}});
    json!({
        "type": "object",
        "properties": {
            "annotations": strings, "labels": strings,
            "name": string, "namespace": string, "uid": string, "generateName": string, "selfLink": string,
            "resourceVersion": string, "creationTimestamp": {}, "deletionTimestamp": {},
            "generation": {"type": "integer"},
            "finalizers": {"type": "array", "items": string, "x-kubernetes-list-type": "set"},
            "managedFields": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "atomic"},
            "ownerReferences": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
                "items": {
                    "type": "object", "x-kubernetes-map-type": "atomic",
                    "properties": {"uid": string, "name": string, "kind": string, "apiVersion": string},
                },
            },
        },
    })
}

const SYSTEM_FIELDS: [&str; 5] =
    ["apiVersion", "creationTimestamp", "deletionTimestamp", "kind", "managedFields"];
const FIELDS: [&str; 6] = ["a", "b", "c", "d", "e<", "f"];

fn structure(r: &mut Random, depth: usize) -> Value {
    let mut properties = Map::new();
    for _ in 0..1 + r.below(4) {
        properties.insert((*r.pick(&FIELDS)).to_owned(), any_type(r, depth + 1));
    }
    let mut out = json!({"type": "object", "properties": properties});
    if depth > 1 && r.percent(10) {
        out["x-kubernetes-map-type"] = json!("atomic");
    }
    if r.percent(8) {
        out["x-kubernetes-preserve-unknown-fields"] = json!(true);
    }
    out
}

fn scalar_type(r: &mut Random) -> Value {
    r.pick(&[
        json!({"type": "string"}),
        json!({"type": "integer"}),
        json!({"type": "boolean"}),
        json!({"type": "number"}),
    ])
    .clone()
}

fn any_type(r: &mut Random, depth: usize) -> Value {
    let deep = depth < 4;
    match r.below(if deep { 10 } else { 3 }) {
        0 | 1 => scalar_type(r),
        2 => json!({"x-kubernetes-int-or-string": true}),
        3 => structure(r, depth),
        4 => json!({"type": "object", "additionalProperties": any_type(r, depth + 1)}),
        5 => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        6 => json!({"type": "array", "items": any_type(r, depth + 1), "x-kubernetes-list-type": "atomic"}),
        7 => json!({
            "type": "array", "x-kubernetes-list-type": "set",
            "items": {"type": *r.pick(&["string", "integer"])},
        }),
        _ => {
            let mut item = structure(r, depth);
            item["properties"]["name"] = json!({"type": "string"});
            let mut keys = vec!["name"];
            if r.percent(40) {
                item["properties"]["port"] = json!({"type": "integer"});
                if r.percent(50) {
                    item["properties"]["port"]["default"] = json!(80);
                }
                keys.push("port");
            }
            json!({
                "type": "array", "items": item,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
            })
        }
    }
}

fn make_some_atomic(r: &mut Random, schema: &mut Value, root: bool) {
    let kind = schema["type"].clone();
    if !root && r.percent(25) {
        if kind == "array" {
            schema["x-kubernetes-list-type"] = json!("atomic");
            schema.as_object_mut().unwrap().remove("x-kubernetes-list-map-keys");
        } else if schema.get("properties").is_some() {
            schema["x-kubernetes-map-type"] = json!("atomic");
        }
    }
    for (_, property) in schema["properties"].as_object_mut().into_iter().flatten() {
        make_some_atomic(r, property, false);
    }
    for part in ["items", "additionalProperties"] {
        if schema.get(part).is_some_and(Value::is_object) {
            make_some_atomic(r, &mut schema[part], false);
        }
    }
}

fn untyped(r: &mut Random, depth: usize) -> Value {
    match r.below(if depth < 5 { 7 } else { 4 }) {
        0 => json!("x"),
        1 => json!(r.below(2)),
        2 => json!(true),
        3 => json!(0.5),
        4 => json!([untyped(r, depth + 1), "y"]),
        _ => {
            let mut map = Map::new();
            for _ in 0..r.below(3) {
                map.insert((*r.pick(&FIELDS)).to_owned(), untyped(r, depth + 1));
            }
            Value::Object(map)
        }
    }
}

/// A value that matches the schema; `unique`: without duplicates in associative lists.
pub(crate) fn value(r: &mut Random, schema: &Value, depth: usize, unique: bool) -> Value {
    if depth > 1 && r.percent(3) && schema.get("x-never-null").is_none() {
        return Value::Null;
    }
    match schema["type"].as_str() {
        Some("string") => json!(*r.pick(&["x", "y", "z<&>"])),
        Some("integer") => json!(*r.pick(&[1, 2, 10])),
        Some("number") => r.pick(&[json!(1), json!(1.5), json!(2.25)]).clone(),
        Some("boolean") => json!(r.percent(50)),
        Some("array") => list(r, schema, depth, unique),
        Some("object") => {
            let mut map = Map::new();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if !SYSTEM_FIELDS.contains(&name.as_str()) && r.percent(60) {
                    map.insert(name.clone(), value(r, property, depth + 1, unique));
                }
            }
            if schema["additionalProperties"].is_object() {
                for _ in 0..r.below(3) {
                    let item = value(r, &schema["additionalProperties"], depth + 1, unique);
                    map.insert((*r.pick(&FIELDS)).to_owned(), item);
                }
            } else if schema["x-kubernetes-preserve-unknown-fields"] == true {
                for _ in 0..r.below(3) {
                    let name = *r.pick(&["u", "v", "w"]);
                    map.insert(name.to_owned(), untyped(r, depth + 1));
                }
            }
            Value::Object(map)
        }
        _ => r.pick(&[json!("50%"), json!(5), json!(7)]).clone(),
    }
}

fn list(r: &mut Random, schema: &Value, depth: usize, unique: bool) -> Value {
    let kind = schema["x-kubernetes-list-type"].as_str().unwrap_or("atomic");
    let mut items: Vec<Value> = Vec::new();
    let mut seen: Vec<Value> = Vec::new();
    for _ in 0..r.below(5) {
        let mut item = value(r, &schema["items"], depth + 1, unique);
        let mut identity = item.clone();
        if kind == "map" {
            if !item.is_object() {
                continue;
            }
            let keys = schema["x-kubernetes-list-map-keys"].as_array().unwrap();
            let first = keys[0].as_str().unwrap();
            item[first] = json!(*r.pick(&["n1", "n2", "n3", "n4"]));
            if item.get("port").is_some_and(Value::is_null) {
                item.as_object_mut().unwrap().remove("port");
            }
            let default = &schema["items"]["properties"]["port"]["default"];
            let port = item.get("port").filter(|_| keys.len() > 1).unwrap_or(default);
            identity = json!([item[first], port]);
        } else if kind == "set" && item.is_null() {
            continue;
        }
        if kind != "atomic" && seen.contains(&identity) && (unique || r.percent(80)) {
            continue;
        }
        seen.push(identity);
        items.push(item);
    }
    Value::Array(items)
}

/// Changes some values so that they still match the schema.
fn mutate(r: &mut Random, schema: &Value, object: &mut Value, unique: bool) {
    match (schema["type"].as_str(), object) {
        (Some("object"), Value::Object(map)) => {
            let none = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&none);
            for (name, property) in properties {
                if SYSTEM_FIELDS.contains(&name.as_str()) {
                    continue;
                }
                match r.below(10) {
                    0 => {
                        map.remove(name);
                    }
                    1 | 2 => {
                        map.insert(name.clone(), value(r, property, 2, unique));
                    }
                    3..=5 => {
                        if let Some(child) = map.get_mut(name) {
                            mutate(r, property, child, unique);
                        }
                    }
                    _ => {}
                }
            }
            if properties.is_empty() && r.percent(50) {
                let fresh = value(r, schema, 2, unique);
                map.extend(fresh.as_object().cloned().unwrap_or_default());
            }
        }
        (Some("array"), Value::Array(items)) if schema["x-kubernetes-list-type"] == "map" => {
            if r.percent(30) && !items.is_empty() {
                let at = r.below(items.len());
                items.remove(at);
            }
            let keys = ["name", "port", "uid"];
            for item in items.iter_mut() {
                if r.percent(50) {
                    continue;
                }
                let before = item.clone();
                mutate(r, &schema["items"], item, unique);
                if let Value::Object(item) = item {
                    for key in keys {
                        item.remove(key);
                        item.extend(before.get(key).map(|value| (key.to_owned(), value.clone())));
                    }
                } else {
                    *item = before;
                }
            }
            if r.percent(30) {
                items.reverse();
            }
        }
        (_, object) => *object = value(r, schema, 2, unique),
    }
}
