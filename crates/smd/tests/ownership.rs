//! Ownership in small cases; the `oracle` test compares many more with upstream, if Go is installed.

#![allow(clippy::unwrap_used)] // a test

use drover_smd::fieldpath::{PathElement, Set};
use drover_smd::managed::{
    ApplyError, FieldManager, Managed, Operation, SingleVersion, keep_unchanged_timestamps, to_parent,
    to_scale,
};
use drover_smd::schema::{Schema, Type, TypeId};
use serde_json::{Value, json};

const NOW: i64 = 1_700_000_000;

struct Fixture {
    schema: Schema,
    id: TypeId,
}

impl Fixture {
    fn new() -> Self {
        let mut schema = Schema::new();
        let meta = schema.add_object_meta();
        let item = json!({"type": "object", "properties": {
            "name": {"type": "string"}, "port": {"type": "integer", "default": 80}, "v": {"type": "string"},
        }});
        let id = schema.add_custom_resource(
            &json!({"type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "replicas": {"type": "integer"},
                    "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "list": {"type": "array", "items": item, "x-kubernetes-list-type": "map",
                             "x-kubernetes-list-map-keys": ["name", "port"]},
                    "map": {"type": "object", "additionalProperties": {"type": "string"}},
                }},
                "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
            }}),
            meta,
        );
        Self { schema, id }
    }

    fn with<T>(&self, subresource: &str, f: impl FnOnce(FieldManager<'_>) -> T) -> T {
        let versions = SingleVersion { api_version: "g/v1", ty: Type { schema: &self.schema, id: self.id } };
        let status = Set::of_fields(&[&["status"]]);
        f(FieldManager {
            versions: &versions,
            api_version: "g/v1",
            kind: "Thing",
            subresource,
            reset_fields: Some(&status),
        })
    }

    fn apply(
        &self,
        live: &Value,
        manager: &str,
        force: bool,
        spec: Value,
    ) -> Result<Option<Value>, ApplyError> {
        let mut config = json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "t"}});
        if !spec.is_null() {
            config["spec"] = spec;
        }
        self.with("", |fields| fields.apply(live, &config, manager, force, NOW))
    }

    fn create(&self, manager: &str, spec: Value) -> Value {
        let mut object = json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "1"}, "spec": spec});
        self.with("", |fields| fields.update(None, &mut object, manager, NOW).unwrap());
        object
    }

    fn update(&self, live: &Value, manager: &str, now: i64, change: impl FnOnce(&mut Value)) -> Value {
        let mut new = live.clone();
        change(&mut new);
        self.with("", |fields| fields.update(Some(live), &mut new, manager, now).unwrap());
        new
    }
}

fn fields(object: &Value, manager: &str, operation: Operation) -> String {
    let managed = Managed::of(object).unwrap();
    let entry = managed.entries.iter().find(|entry| entry.manager == manager && entry.operation == operation);
    entry.map(|entry| entry.fields.to_json()).unwrap_or_default()
}

#[test]
fn an_applier_owns_its_configuration_and_an_updater_its_changes() {
    let fixture = Fixture::new();
    let live = fixture.create("creator", json!({"map": {"a": "1"}}));
    let all = r#"{"f:spec":{".":{},"f:map":{".":{},"f:a":{}}}}"#;
    assert_eq!(fields(&live, "creator", Operation::Update), all);
    let live = fixture.apply(&live, "me", false, json!({"map": {"a": "1", "b": "1"}})).unwrap().unwrap();
    assert_eq!(fields(&live, "me", Operation::Apply), r#"{"f:spec":{"f:map":{"f:a":{},"f:b":{}}}}"#);
    let live = fixture.update(&live, "you", NOW, |new| new["spec"]["map"]["b"] = json!("2"));
    assert_eq!(fields(&live, "me", Operation::Apply), r#"{"f:spec":{"f:map":{"f:a":{}}}}"#);
    assert_eq!(fields(&live, "you", Operation::Update), r#"{"f:spec":{"f:map":{"f:b":{}}}}"#);
}

#[test]
fn conflicts_name_owner_and_field_and_force_takes_the_field() {
    let fixture = Fixture::new();
    let live = fixture.create("creator", json!({"list": [{"name": "a", "v": "1"}]}));
    let change = json!({"list": [{"name": "a", "v": "2"}]});
    let ApplyError::Conflicts(conflicts) = fixture.apply(&live, "me", false, change.clone()).unwrap_err()
    else {
        panic!("no conflict")
    };
    let message = "Apply failed with 1 conflict: conflict with \"creator\" using g/v1: .spec.list[name=\"a\",port=80].v";
    assert_eq!(conflicts.to_string(), message);
    let live = fixture.apply(&live, "me", true, change).unwrap().unwrap();
    assert_eq!(live["spec"]["list"][0]["v"], "2");
    assert!(!fields(&live, "creator", Operation::Update).contains("f:v"));
}

#[test]
fn a_field_removed_from_the_configuration_is_deleted_unless_it_has_another_owner() {
    let fixture = Fixture::new();
    let live = fixture.apply(
        &json!({"apiVersion": "g/v1", "kind": "Thing"}),
        "a",
        false,
        json!({"set": ["x", "y"]}),
    );
    let live = live.unwrap().unwrap();
    let live = fixture.apply(&live, "b", false, json!({"set": ["y", "z"]})).unwrap().unwrap();
    assert_eq!(live["spec"]["set"], json!(["x", "y", "z"]));
    let live = fixture.apply(&live, "a", false, json!(null)).unwrap().unwrap();
    assert_eq!(live["spec"]["set"], json!(["y", "z"]));
    let live = fixture.apply(&live, "b", false, json!(null)).unwrap().unwrap();
    assert_eq!(live.get("spec"), None);
    assert_eq!(live["metadata"].get("managedFields"), None);
}

#[test]
fn a_repeated_apply_changes_nothing() {
    let fixture = Fixture::new();
    let config = json!({"list": [{"name": "a"}], "set": ["x"], "map": {"k": "v"}, "replicas": 1});
    let empty = json!({"apiVersion": "g/v1", "kind": "Thing"});
    let live = fixture.apply(&empty, "me", false, config.clone()).unwrap().unwrap();
    assert_eq!(fixture.apply(&live, "me", false, config).unwrap(), None);
}

#[test]
fn duplicates_are_refused_in_a_configuration_and_tolerated_in_the_object() {
    let fixture = Fixture::new();
    let live = fixture.create("creator", json!({"set": ["x", "x"], "replicas": 1}));
    let error = fixture.apply(&live, "me", false, json!({"set": ["x", "x"]})).unwrap_err();
    assert!(error.to_string().ends_with(".spec.set: duplicate entries for key [=\"x\"]"), "{error}");
    let live = fixture.apply(&live, "me", true, json!({"replicas": 2})).unwrap().unwrap();
    assert_eq!(live["spec"]["set"], json!(["x", "x"]));
}

#[test]
fn more_than_ten_updaters_are_merged() {
    let fixture = Fixture::new();
    let mut live = fixture.create("m00", json!({"map": {}}));
    for i in 1..15_i64 {
        live = fixture.update(&live, &format!("m{i:02}"), NOW + i, |new| {
            new["spec"]["map"][format!("k{i}")] = json!("v");
        });
    }
    let managed = Managed::of(&live).unwrap();
    assert_eq!(managed.entries.len(), 10);
    assert_eq!(managed.entries[0].manager, "ancient-changes");
    assert_eq!(managed.entries[0].time, Some(NOW + 5));
    let kept: usize = managed.entries.iter().map(|entry| entry.fields.len()).sum();
    assert_eq!(kept, 16, "every field still has an owner");
}

#[test]
fn an_untracked_object_is_tracked_after_its_first_apply() {
    let fixture = Fixture::new();
    let live = json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "1"}, "spec": {"replicas": 1}});
    let same = fixture.update(&live, "you", NOW, |new| new["spec"]["replicas"] = json!(2));
    assert_eq!(same["metadata"].get("managedFields"), None);
    let applied = fixture.apply(&live, "me", false, json!({"set": ["x"]})).unwrap().unwrap();
    let before = fields(&applied, "before-first-apply", Operation::Update);
    assert_eq!(before, r#"{"f:spec":{".":{},"f:replicas":{}}}"#);
}

#[test]
fn a_write_that_only_changes_a_timestamp_is_dropped() {
    let fixture = Fixture::new();
    let live = fixture.create("me", json!({"replicas": 1}));
    let mut later = live.clone();
    later["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    let mut other = later.clone();
    keep_unchanged_timestamps(&live, &mut later);
    assert_eq!(later, live);
    other["spec"]["replicas"] = json!(2);
    keep_unchanged_timestamps(&live, &mut other);
    assert_eq!(other["metadata"]["managedFields"][0]["time"], "2030-01-01T00:00:00Z");
}

#[test]
fn a_scale_write_changes_the_owner_of_replicas() {
    let fixture = Fixture::new();
    let live = fixture.create("me", json!({"replicas": 1, "set": ["x"]}));
    let parent = Managed::of(&live).unwrap();
    let replicas = vec![PathElement::field("spec"), PathElement::field("replicas")];
    let paths = |version: &str| (version == "g/v1").then(|| Some(replicas.clone()));
    let mut scale = to_scale(&parent, &paths);
    assert_eq!(scale.entries[0].api_version, "autoscaling/v1");
    assert_eq!(to_parent(&parent, &scale, "g/v1", &paths).entries.len(), 1, "unchanged");
    scale.entries[0].manager = "hpa".to_owned();
    scale.entries[0].subresource = "scale".to_owned();
    let after = to_parent(&parent, &scale, "g/v1", &paths);
    assert_eq!(after.entries.len(), 2);
    assert!(!after.entries[0].fields.has(&replicas));
    assert_eq!(after.entries[1].fields.to_json(), r#"{"f:spec":{"f:replicas":{}}}"#);
}
