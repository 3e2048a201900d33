//! Custom resources: their types come from the CRD's schema.

use super::*;

const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const THING: &str = "/apis/example.com/v1/namespaces/default/things/t";

async fn with_things() -> Client {
    let client = Client::new().await;
    let list =
        |kind: &str, items: Value| json!({"type": "array", "items": items, "x-kubernetes-list-type": kind});
    let mut keyed = list(
        "map",
        json!({
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "port": {"type": "integer", "default": 80}, "v": {"type": "string"}},
        }),
    );
    keyed["x-kubernetes-list-map-keys"] = json!(["name", "port"]);
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "set": list("set", json!({"type": "string"})),
                        "keyed": keyed,
                        "atomic": list("atomic", json!({"type": "string"})),
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    }},
                    "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
                }}},
            }],
        },
    });
    client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while client.call(Method::GET, THINGS, "application/json", &Value::Null).await.0 != 200 {
        assert!(std::time::Instant::now() < deadline, "the CRD was not established");
        tokio::task::yield_now().await;
    }
    client
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "default"}, "spec": spec})
}

#[tokio::test]
async fn kubernetes_api_check_25_lists_of_custom_resources_merge_by_their_type() {
    let client = with_things().await;
    let first = json!({"set": ["x", "y"], "keyed": [{"name": "k", "v": "1"}], "atomic": ["x"], "free": {"a": {"b": 1}}});
    client.apply(THING, "a", &thing(first)).await;
    let second = json!({"set": ["z", "x"], "keyed": [{"name": "l"}, {"name": "k", "port": 81}], "free": {"a": {"c": 1}}});
    let both = client.apply(THING, "b", &thing(second)).await;
    assert_eq!(both["spec"]["set"], json!(["z", "x", "y"]));
    let keys: Vec<_> =
        both["spec"]["keyed"].as_array().unwrap().iter().map(|i| (&i["name"], &i["port"])).collect();
    assert_eq!(keys, [(&json!("k"), &json!(80)), (&json!("l"), &json!(80)), (&json!("k"), &json!(81))]);
    assert_eq!(both["spec"]["free"], json!({"a": {"b": 1, "c": 1}}));
    let mine = owned(&both, "b", "Apply", "");
    assert_eq!(mine["f:spec"]["f:set"], json!({"v:\"x\"": {}, "v:\"z\"": {}}));
    assert_eq!(mine["f:spec"]["f:keyed"]["k:{\"name\":\"l\",\"port\":80}"], json!({".": {}, "f:name": {}}));
    let (code, _) = client.try_apply(THING, "b", &thing(json!({"atomic": ["y"]}))).await;
    assert_eq!(code, 409);
    let gone = client.apply(THING, "b", &thing(json!({}))).await;
    assert_eq!(gone["spec"]["set"], json!(["x", "y"]));
    assert_eq!(gone["spec"]["free"], json!({"a": {"b": 1}}));
}

#[tokio::test]
async fn custom_resources_reject_strategic_merge_patches_and_unknown_fields() {
    let client = with_things().await;
    let created = client.post(THINGS, &thing(json!({"set": ["x"]}))).await;
    assert_eq!(owned(&created, "tester", "Update", "")["f:spec"]["."], json!({}));
    let (code, status) = client.call(Method::PATCH, THING, STRATEGIC, &json!({"spec": {}})).await;
    assert_eq!(code, 415, "{status}");
    let (code, status) = client.try_apply(THING, "a", &thing(json!({"typo": 1}))).await;
    assert_eq!(code, 400);
    assert!(
        status["message"].as_str().unwrap().contains(".spec.typo: field not declared in schema"),
        "{status}"
    );
}

#[tokio::test]
async fn owners_of_another_version_keep_their_fields() {
    let client = with_things().await;
    client.apply(THING, "a", &thing(json!({"set": ["x"], "atomic": ["x"]}))).await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";
    let mut definition = client.get(definitions).await;
    let mut second = definition["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    definition["spec"]["versions"].as_array_mut().unwrap().push(second);
    client.put(definitions, &definition).await;
    let path = THING.replace("/v1/", "/v2/");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while client.call(Method::GET, &path, "application/json", &Value::Null).await.0 != 200 {
        assert!(std::time::Instant::now() < deadline, "v2 was not served");
        tokio::task::yield_now().await;
    }
    let mut config = thing(json!({"atomic": ["y"]}));
    config["apiVersion"] = json!("example.com/v2");
    assert_eq!(client.try_apply(&path, "b", &config).await.0, 409);
    let forced = client.patch(APPLY, &format!("{path}?fieldManager=b&force=true"), &config).await;
    let entries = forced["metadata"]["managedFields"].as_array().unwrap();
    let versions: Vec<_> = entries.iter().map(|entry| entry["apiVersion"].as_str().unwrap()).collect();
    assert_eq!(versions, ["example.com/v1", "example.com/v2"]);
    assert_eq!(owned(&forced, "a", "Apply", ""), json!({"f:spec": {"f:set": {"v:\"x\"": {}}}}));
    // The first manager removes a field in the new version that it applied in the old one.
    let mut config = thing(json!({}));
    config["apiVersion"] = json!("example.com/v2");
    let after = client.apply(&path, "a", &config).await;
    assert_eq!(after["spec"], json!({"atomic": ["y"]}));
}
