//! Schemas of custom resources: defaults, rules, patterns, columns, and the errors of large objects.

use serde_json::{Value, json};

use crate::harness::{FOOS, MIB, Server, anything, foo};
use crate::meter::exclusive;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_of_list_items_are_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let items =
        json!({"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(100_000)}}});
    let spec = json!({"type": "object", "properties": {"l": {"type": "array", "items": items}}});
    server.define(spec, json!([])).await.expect(201);
    let body = foo("x", &format!("{{\"l\":[{}{{}}]}}", "{},".repeat(100_000)));
    let sent = body.len();
    let status = server.post(FOOS, body).await.bounded("defaults of list items", sent, 413);
    assert!(status["message"].as_str().unwrap().contains("the defaults of the schema"), "{status}");
    server.post(FOOS, foo("y", "{\"l\":[{},{}]}")).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_about_a_large_object_are_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let names: Vec<String> = (0..20_000).map(|n| format!("value-{n}")).collect();
    let spec = json!({"type": "object", "properties": {
        "l": {"type": "array", "items": {"type": "string", "enum": names}},
        "m": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}}},
    }});
    server.define(spec, json!([])).await.expect(201);
    for (what, spec) in [
        ("many wrong types", format!("{{\"l\":[{}1]}}", "1,".repeat(200_000))),
        ("many unsupported values", format!("{{\"l\":[{}\"a\"]}}", "\"b\",".repeat(200_000))),
        (
            "many errors below a long key",
            format!(
                "{{\"m\":{{\"{}\":{{{}\"a\":1}}}}}}",
                "k".repeat(MIB),
                (0..100_000).map(|n| format!("\"{n}\":1,")).collect::<String>()
            ),
        ),
        ("one long value", format!("{{\"l\":[\"{}\"]}}", "x".repeat(2 * MIB))),
    ] {
        let body = foo("x", &spec);
        let sent = body.len();
        let answer = server.post(FOOS, body).await;
        assert!(answer.bytes.len() < 4 * MIB, "{what}: {}", answer.bytes.len());
        let status = answer.bounded(what, sent, 422);
        assert!(status["details"]["causes"].as_array().unwrap().len() <= 101, "{what}");
    }
}

/// Items of lists of type map are compared with their old versions; a linear search per item would be quadratic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_long_keyed_lists_end_in_time() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let items = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}});
    let list = json!({"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
    server.define(json!({"type": "object", "properties": {"l": list}}), json!([])).await.expect(201);
    let list = |v: usize| (0..15_000).map(|n| json!({"k": format!("k{n}"), "v": v})).collect::<Vec<Value>>();
    server.post(FOOS, foo("x", &json!({"l": list(1)}).to_string())).await.expect(201);
    let patch = json!({"spec": {"l": list(2)}}).to_string();
    let sent = patch.len();
    let answer = server.patch(&format!("{FOOS}/x"), "merge-patch+json", patch).await;
    answer.bounded("an update of a long keyed list", sent, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_built_by_rules_are_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let rule = |rule: String| {
        let text = json!({"type": "string", "maxLength": 1000});
        json!({"type": "object", "properties": {"s": text}, "x-kubernetes-validations": [{"rule": rule}]})
    };
    // Each iteration doubles the text; thirty iterations would multiply it by a thousand million.
    let doubled = (0..30).fold("[self.s]".to_owned(), |list, _| format!("{list}.map(a, a + a)"));
    let doubled = format!("{doubled}[0].size() > 0");
    let answer = server.define(rule(doubled), json!([])).await;
    if answer.code == 201 {
        let body = foo("x", &json!({"s": "x".repeat(1000)}).to_string());
        let sent = body.len();
        server.post(FOOS, body).await.bounded("a rule that doubles a text", sent, 422);
    } else {
        answer.bounded("a CRD with a rule that doubles a text", 1000, 422);
    }
}

/// The parser of rules is recursive; a rule with a megabyte of brackets must not end the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_rules_columns_and_patterns_are_rejected() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let with = |rule: String| {
        let mut spec = anything();
        spec["x-kubernetes-validations"] = json!([{"rule": rule}]);
        spec
    };
    for (what, rule) in [
        ("brackets", format!("{}true{}", "(".repeat(100_000), ")".repeat(100_000))),
        ("negations", format!("{}true", "!".repeat(100_000))),
        ("sums", format!("1{} > 0", " + 1".repeat(100_000))),
        ("conjunctions", vec!["true"; 100_000].join(" && ")),
        ("conditions", format!("{}true", "true ? true : ".repeat(50_000))),
        ("lists", format!("{}{}.size() == 0", "[".repeat(100_000), "]".repeat(100_000))),
        ("selections", format!("has(self.a{})", ".a".repeat(100_000))),
    ] {
        let sent = rule.len();
        server.define(with(rule), json!([])).await.bounded(&format!("a rule of many {what}"), sent, 422);
    }
    let column = |path: String| json!([{"name": "C", "type": "string", "jsonPath": path}]);
    let nested = format!(".spec{}.a{}", "[?(@".repeat(100_000), ")]".repeat(100_000));
    let sent = nested.len();
    server.define(anything(), column(nested)).await.bounded("a column of nested filters", sent, 422);
    let pattern = |n: usize| {
        (format!("p{n}"), json!({"type": "string", "pattern": format!("^(\\pL{{900}}){{1,{}}}$", 10 + n)}))
    };
    let patterns: serde_json::Map<String, Value> = (0..200).map(pattern).collect();
    let spec = json!({"type": "object", "properties": patterns});
    let sent = spec.to_string().len();
    server.define(spec, json!([])).await.bounded("many large patterns", sent, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_with_many_matches_are_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let column =
        |n: usize| json!({"name": format!("C{n}"), "type": "string", "jsonPath": "..a..a..a..a..a..a"});
    server.define(anything(), (0..20).map(column).collect()).await.expect(201);
    let spec = format!("{}{{\"b\":\"{}\"}}{}", "{\"a\":".repeat(90), "x".repeat(1000), "}".repeat(90));
    server.post(FOOS, foo("x", &spec)).await.expect(201);
    let answer = server.get(FOOS, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
    answer.bounded("columns that find everything", 0, 200);
}
