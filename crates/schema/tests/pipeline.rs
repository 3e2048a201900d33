//! Pruning, defaulting and validation as in kube-apiserver (checks 26, 28 and ratcheting).

use drover_schema::{Path, Schema, aggregate};
use serde_json::{Value, json};

fn compile(schema: Value) -> Schema {
    Schema::compile(&schema, &Path::root()).unwrap_or_else(|e| panic!("{}", aggregate(&e)))
}

fn object_schema(spec: Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}})
}

fn errors(schema: &Schema, object: Value, old: Option<Value>) -> Vec<String> {
    schema.validate(&object, old.as_ref()).iter().map(ToString::to_string).collect()
}

/// Check 28: defaults, pruning, int-or-string, embedded resources and preserved fields together.
#[test]
fn check_28_write_pipeline() {
    let schema = compile(object_schema(json!({
        "type": "object",
        "properties": {
            "replicas": {"type": "integer", "format": "int32", "default": 1},
            "port": {"x-kubernetes-int-or-string": true, "default": "http"},
            "nested": {"type": "object", "default": {}, "properties": {"mode": {"type": "string", "default": "auto"}}},
            "nullable": {"type": "string", "nullable": true, "default": "x"},
            "plain": {"type": "string"},
            "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                         "x-kubernetes-preserve-unknown-fields": true},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer", "default": 7}}}}
        }
    })));
    let mut object = json!({
        "apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n", "unknownMeta": 1},
        "extra": 1,
        "spec": {
            "typo": true, "replicas": null, "nullable": null, "plain": null,
            "raw": {"anything": {"deep": 1}, "known": {"a": "1", "b": "dropped"}},
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "bogus": 1}, "spec": {"x": 1}},
            "labels": {"any": "thing"},
            "list": [{"m": 1}, {}]
        }
    });
    let mut pruned = schema.prune(&mut object);
    pruned.sort();
    assert_eq!(
        pruned,
        [
            "extra",
            "metadata.unknownMeta",
            "spec.list[0].m",
            "spec.raw.known.b",
            "spec.template.metadata.bogus",
            "spec.typo"
        ]
    );
    schema.default(&mut object).unwrap();
    assert_eq!(
        object["spec"],
        json!({
            "replicas": 1, "port": "http", "nested": {"mode": "auto"}, "nullable": null,
            "raw": {"anything": {"deep": 1}, "known": {"a": "1"}},
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"x": 1}},
            "labels": {"any": "thing"}, "list": [{"n": 7}, {"n": 7}]
        })
    );
    assert_eq!(errors(&schema, object.clone(), None), Vec::<String>::new());
    object["spec"]["port"] = json!(1.5);
    object["spec"]["template"] = json!({"kind": "Pod"});
    assert_eq!(
        errors(&schema, object, None),
        [
            "spec.port: Invalid value: \"number\": spec.port in body must be of type integer,string: \"number\"",
            "spec.template.apiVersion: Required value",
        ]
    );
}

#[test]
fn errors_match_upstream() {
    let schema = compile(object_schema(json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 3, "minLength": 2, "pattern": "^[a-z]+$"},
            "mode": {"type": "string", "enum": ["a", "b"]},
            "n": {"type": "integer", "minimum": 1, "maximum": 5, "multipleOf": 2},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 2, "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}},
            "when": {"type": "string", "format": "date-time"},
            "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "not": {"type": "string", "not": {"enum": ["never"]}}
        }
    })));
    let case = |spec: Value, wanted: &[&str]| {
        assert_eq!(errors(&schema, json!({"spec": spec.clone()}), None), wanted, "{spec}");
    };
    case(json!({}), &["spec.name: Required value"]);
    case(json!({"name": "abcd"}), &["spec.name: Too long: may not be more than 3 bytes"]);
    case(
        json!({"name": "a"}),
        &["spec.name: Invalid value: \"a\": spec.name in body should be at least 2 chars long"],
    );
    case(
        json!({"name": "A1"}),
        &["spec.name: Invalid value: \"A1\": spec.name in body should match '^[a-z]+$'"],
    );
    case(
        json!({"name": "ab", "mode": "c"}),
        &["spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\""],
    );
    case(
        json!({"name": "ab", "n": 7}),
        &[
            "spec.n: Invalid value: 7: spec.n in body should be less than or equal to 5",
            "spec.n: Invalid value: 7: spec.n in body should be a multiple of 2",
        ],
    );
    case(
        json!({"name": "ab", "n": "7"}),
        &["spec.n: Invalid value: \"string\": spec.n in body must be of type integer: \"string\""],
    );
    case(
        json!({"name": "ab", "set": ["x", "y", "x"]}),
        &["spec.set: Too many: 3: must have at most 2 items", "spec.set[2]: Duplicate value: \"x\""],
    );
    case(
        json!({"name": "ab", "map": [{"k": "1"}, {"k": "1"}]}),
        &["spec.map[1]: Duplicate value: {\"k\":\"1\"}"],
    );
    case(
        json!({"name": "ab", "when": "now"}),
        &["spec.when: Invalid value: \"now\": spec.when in body must be of type date-time: \"now\""],
    );
    case(
        json!({"name": "ab", "one": {"a": "", "b": ""}}),
        &[
            "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ],
    );
    case(
        json!({"name": "ab", "not": "never"}),
        &["<nil>: Invalid value: \"\": \"spec.not\" must not validate the schema (not)"],
    );
    case(
        json!({"name": null}),
        &["spec.name: Invalid value: \"null\": spec.name in body must be of type string: \"null\""],
    );
}

/// An update may keep values that a stricter schema rejects, also in items of map lists.
#[test]
fn updates_ratchet() {
    let schema = compile(object_schema(json!({
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 1}, "b": {"type": "string"},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "required": ["k"],
                              "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 1}, "w": {"type": "string"}}}}
        }
    })));
    let old = json!({"spec": {"a": "long", "b": "1", "map": [{"k": "x", "v": 9}]}});
    let new = json!({"spec": {"a": "long", "b": "2", "map": [{"k": "y"}, {"k": "x", "v": 9, "w": "new"}]}});
    assert_eq!(errors(&schema, new.clone(), Some(old.clone())), Vec::<String>::new());
    assert_eq!(errors(&schema, new, None).len(), 2);
    let worse = json!({"spec": {"a": "longer", "b": "1"}});
    assert_eq!(errors(&schema, worse, Some(old)), ["spec.a: Too long: may not be more than 1 byte"]);
}

#[test]
fn non_structural_schemas_are_rejected_with_paths() {
    let case = |schema: Value, wanted: &[&str]| {
        let at = "spec.validation.openAPIV3Schema";
        let found = match Schema::compile(&schema, &Path::at(at)) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.iter().map(|e| e.to_string().replace(at, "~")).collect(),
        };
        assert_eq!(found, wanted, "{schema}");
    };
    case(json!({"properties": {}}), &["~.type: Required value: must not be empty at the root"]);
    case(
        json!({"type": "object", "properties": {"a": {}}}),
        &["~.properties[a].type: Required value: must not be empty for specified object fields"],
    );
    case(
        json!({"type": "object", "properties": {"a": {"type": "array"}}}),
        &["~.properties[a].items: Required value: must be specified"],
    );
    case(
        json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": [{"type": "string"}]}}}),
        &["~.properties[a].anyOf[0].type: Forbidden: must be empty to be structural"],
    );
    case(
        json!({"type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]}),
        &["~.properties[a]: Required value: because it is defined in ~.anyOf[0].properties[a]"],
    );
    case(
        json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
        &[
            "~.properties[a].default: Invalid value: \"string\": ~.properties[a].default in body must be of type integer: \"string\"",
        ],
    );
    case(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        &[
            "~.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ],
    );
    let bad_pattern = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}});
    let errors = Schema::compile(&bad_pattern, &Path::root()).expect_err("the pattern is malformed");
    assert!(
        errors[0]
            .to_string()
            .starts_with("properties[a].pattern: Invalid value: \"(\": must be a valid regular")
    );
}
