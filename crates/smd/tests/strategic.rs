//! Strategic merge patches in small cases; the `oracle` test compares many more with upstream.

#![allow(clippy::unwrap_used)] // a test

use drover_smd::schema::{Schema, Type};
use drover_smd::strategic::{StrategicError, strategic_merge};
use serde_json::{Value, json};

fn merge(current: Value, patch: Value) -> Result<Value, StrategicError> {
    let mut schema = Schema::new();
    let meta = schema.add_object_meta();
    let id = schema.add_custom_resource(
        &json!({"type": "object", "properties": {
            "items": {
                "type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}},
            },
            "names": {"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"},
            "list": {"type": "array", "items": {"type": "string"}},
            "map": {"type": "object"},
        }}),
        meta,
    );
    strategic_merge(Type { schema: &schema, id }, &current, &patch)
}

fn check(current: Value, patch: Value, expected: Value) {
    assert_eq!(merge(current.clone(), patch.clone()).unwrap(), expected, "{current} patched by {patch}");
}

#[test]
fn maps_are_merged_nulls_delete_and_plain_lists_are_replaced() {
    check(
        json!({"map": {"a": 1, "b": 1}}),
        json!({"map": {"a": null, "c": 2}}),
        json!({"map": {"b": 1, "c": 2}}),
    );
    check(json!({"list": ["a"]}), json!({"list": ["b"]}), json!({"list": ["b"]}));
    check(json!({}), json!({"map": {"a": null, "b": {"c": null}}}), json!({"map": {"b": {}}}));
}

#[test]
fn lists_merge_by_key_or_as_sets() {
    let current = json!({"items": [{"name": "a", "v": 1}, {"name": "b", "v": 1}], "names": ["x", "y"]});
    let patch = json!({"items": [{"name": "c"}, {"name": "a", "v": 2}], "names": ["z", "x"]});
    let expected = json!({
        "items": [{"name": "c"}, {"name": "a", "v": 2}, {"name": "b", "v": 1}],
        "names": ["z", "x", "y"],
    });
    check(current, patch, expected);
}

#[test]
fn directives_delete_replace_retain_and_order() {
    let items = json!({"items": [{"name": "a", "v": 1}, {"name": "b", "v": 1}]});
    let delete = json!({"items": [{"name": "a", "$patch": "delete"}]});
    check(items.clone(), delete, json!({"items": [{"name": "b", "v": 1}]}));
    check(
        items.clone(),
        json!({"items": [{"$patch": "replace"}, {"name": "z"}]}),
        json!({"items": [{"name": "z"}]}),
    );
    let order = json!({"$setElementOrder/items": [{"name": "b"}, {"name": "a"}]});
    check(items, order, json!({"items": [{"name": "b", "v": 1}, {"name": "a", "v": 1}]}));
    let map = json!({"map": {"a": 1, "b": 1}});
    check(map.clone(), json!({"map": {"$retainKeys": ["a"], "a": 2}}), json!({"map": {"a": 2}}));
    check(map.clone(), json!({"map": {"$patch": "replace", "c": 1}}), json!({"map": {"c": 1}}));
    check(map, json!({"map": {"$patch": "delete"}}), json!({"map": {}}));
    let names = json!({"names": ["x", "y"]});
    check(names, json!({"$deleteFromPrimitiveList/names": ["x"]}), json!({"names": ["y"]}));
}

#[test]
fn errors_of_bad_patches_have_the_path() {
    let items = json!({"items": [{"name": "a"}]});
    let error = merge(items.clone(), json!({"items": [{"v": 1}]})).unwrap_err();
    assert_eq!(error.to_string(), "items.[0]: does not contain the merge key \"name\"");
    assert!(matches!(error, StrategicError::Unprocessable(..)));
    let error = merge(items.clone(), json!({"items": [{"name": "a", "$patch": "frob"}]})).unwrap_err();
    assert!(matches!(error, StrategicError::Format(..)), "{error}");
    let retain = merge(json!({"map": {}}), json!({"map": {"$retainKeys": ["a"], "b": 1}})).unwrap_err();
    assert!(matches!(retain, StrategicError::Unprocessable(..)), "{retain}");
    let order = json!({"$setElementOrder/items": [{"name": "b"}], "items": [{"name": "a"}]});
    assert!(matches!(merge(items, order).unwrap_err(), StrategicError::Unprocessable(..)));
}
