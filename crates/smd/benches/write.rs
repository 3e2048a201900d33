//! Measures the cost of field ownership per write, compared with the original on the same machine:
//! `cargo bench -p drover-smd`. Without Go, only Drover's numbers are printed.

#![allow(clippy::unwrap_used)] // a benchmark

#[allow(dead_code)] // the test uses the rest of the module
#[path = "../tests/oracle/peer.rs"]
mod peer;
#[allow(dead_code)] // the test uses the rest of the module
#[path = "../tests/oracle/play.rs"]
mod play;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::play::Kind;

// Items that `peer` and `play` import from the test crate.
#[allow(dead_code)] // imported but not constructed
mod generate {
    pub(crate) struct Case {
        pub(crate) schemas: Vec<super::Value>,
        pub(crate) steps: Vec<super::Value>,
    }
}

fn normal(value: &Value) -> Value {
    value.clone()
}

fn main() {
    let kind = Kind::new(&schema());
    let history = history();
    let mut live = None;
    for step in &history {
        live = Some(play::step(&kind, live.as_ref(), step).unwrap());
    }
    let live = live.unwrap();
    let size = live.to_string().len();
    println!(
        "object of {size} bytes, {} owners",
        live["metadata"]["managedFields"].as_array().unwrap().len()
    );
    let peer = peer::build();
    if peer.is_none() {
        println!("Go is not installed: no comparison");
    }
    for (name, step) in writes(&live) {
        let ours = time(|| drop(play::step(&kind, Some(&live), &step).unwrap()));
        print!("{name:<32} {:>9.1} µs", ours.as_secs_f64() * 1e6);
        if let Some(peer) = &peer {
            let question = json!({"schemas": [schema()], "steps": history, "bench": step});
            let upstream = peer.ask(vec![question])[0][0]["nanoseconds"].as_f64().unwrap() / 1e9;
            print!("   upstream {:>9.1} µs   {:>5.1} ×", upstream * 1e6, upstream / ours.as_secs_f64());
        }
        println!();
    }
}

/// The mean duration over about half a second.
fn time(mut f: impl FnMut()) -> Duration {
    let (start, mut rounds) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(500) {
        f();
        rounds += 1;
    }
    start.elapsed() / rounds
}

fn writes(live: &Value) -> Vec<(&'static str, Value)> {
    let mut plain = live.clone();
    plain["metadata"].as_object_mut().unwrap().remove("managedFields");
    let mut changed = plain.clone();
    changed["spec"]["containers"][0]["image"] = json!("image:2");
    let mut status = plain.clone();
    status["status"]["conditions"][1]["status"] = json!("False");
    let mut config = config();
    config["spec"]["replicas"] = json!(9);
    vec![
        ("update without changes", step("editor", "", false, plain)),
        ("update of one field", step("editor", "", false, changed)),
        ("update of the status", step("controller", "status", false, status)),
        ("apply without changes", step("applier", "", true, self::config())),
        ("apply of one field", step("applier", "", true, config)),
    ]
}

fn history() -> Vec<Value> {
    let mut labelled = config();
    labelled["metadata"]["labels"]["team"] = json!("a");
    labelled["status"] = json!({});
    let mut status = labelled.clone();
    status["status"]["conditions"] = (0..5)
        .map(|i| json!({"type": format!("Condition{i}"), "status": "True", "reason": "Ready", "message": "no errors"}))
        .collect();
    vec![
        step("applier", "", true, config()),
        step("editor", "", false, labelled),
        step("controller", "status", false, status),
    ]
}

fn step(manager: &str, subresource: &str, apply: bool, object: Value) -> Value {
    json!({"schema": 0, "version": "v1", "subresource": subresource, "manager": manager, "apply": apply,
           "force": true, "object": object})
}

fn config() -> Value {
    let container = |i: i32| {
        let env: Vec<Value> =
            (0..8).map(|e| json!({"name": format!("E{e}"), "value": "some value"})).collect();
        json!({"name": format!("container-{i}"), "image": "image:1", "args": ["--a", "--b"], "env": env,
               "ports": [{"port": 80 + i, "protocol": "TCP", "name": "http"}]})
    };
    json!({
        "apiVersion": format!("{}/v1", play::GROUP), "kind": play::KIND,
        "metadata": {"name": "thing", "labels": {"app": "thing", "tier": "back"}, "annotations": {"note": "text"}},
        "spec": {"replicas": 3, "selector": {"app": "thing"}, "containers": [container(0), container(1), container(2)]},
    })
}

fn schema() -> Value {
    let string = json!({"type": "string"});
    let strings = json!({"type": "object", "additionalProperties": string});
    let keyed = |keys: Value, properties: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
               "items": {"type": "object", "properties": properties}})
    };
    let atomic = json!({"type": "array", "items": string, "x-kubernetes-list-type": "atomic"});
    json!({"type": "object", "properties": {
        "apiVersion": string, "kind": string,
        "metadata": {"type": "object", "properties": {
            "name": string, "uid": string, "labels": strings, "annotations": strings,
            "managedFields": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "atomic"},
        }},
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "selector": strings,
            "containers": keyed(json!(["name"]), json!({
                "name": string, "image": string, "args": atomic,
                "env": keyed(json!(["name"]), json!({"name": string, "value": string})),
                "ports": keyed(json!(["port", "protocol"]), json!({"port": {"type": "integer"}, "protocol": string, "name": string})),
            })),
        }},
        "status": {"type": "object", "properties": {
            "conditions": keyed(json!(["type"]), json!({"type": string, "status": string, "reason": string, "message": string})),
        }},
    }})
}
