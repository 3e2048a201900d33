//! Ownership of writes other than apply, and strategic merge patches.

use std::sync::Arc;

use super::*;
use crate::patch::{FieldManager, Fields, Manager};
use crate::resources::{Resource, ResourceDef};
use crate::strategy::Plain;

#[tokio::test]
async fn updaters_own_their_changes() {
    let client = Client::new().await;
    let created = client.post(CONFIG_MAPS, &config_map(json!({"k": "1"}))).await;
    let fields = json!({"f:data": {".": {}, "f:k": {}}});
    assert_eq!(
        owned(&created, "tester", "Update", ""),
        fields,
        "the manager is the User-Agent up to the slash"
    );
    let path = format!("{CONFIG_MAP}?fieldManager=other");
    let patched = client.patch(MERGE, &path, &json!({"data": {"l": "1"}})).await;
    assert_eq!(owned(&patched, "other", "Update", ""), json!({"f:data": {"f:l": {}}}));
    let taken = client.patch(MERGE, &path, &json!({"data": {"k": "2"}})).await;
    assert_eq!(owned(&taken, "tester", "Update", ""), json!({"f:data": {}}));
}

#[tokio::test]
async fn always_present_structs_have_no_owner() {
    let client = Client::new().await;
    let created = client.post(DEPLOYMENTS, &deployment()).await;
    let spec = &owned(&created, "tester", "Update", "")["f:spec"];
    assert_eq!(spec.get("."), None);
    let template = &spec["f:template"];
    assert_eq!(template["f:metadata"], json!({"f:labels": {".": {}, "f:app": {}}}));
    let container = &template["f:spec"]["f:containers"]["k:{\"name\":\"a\"}"];
    assert_eq!(container["f:ports"]["."], json!({}));
    assert_eq!(template["f:spec"]["f:containers"].get("."), None);
}

#[tokio::test]
async fn managed_fields_can_be_reset_and_are_tracked_again_after_an_apply() {
    let client = Client::new().await;
    client.post(CONFIG_MAPS, &config_map(json!({"k": "1"}))).await;
    for reset in [json!([]), json!([{}])] {
        let mut object = client.get(CONFIG_MAP).await;
        object["metadata"]["managedFields"] = reset;
        let after = client.put(CONFIG_MAP, &object).await;
        assert_eq!(after["metadata"].get("managedFields"), None);
    }
    let applied = client.apply(CONFIG_MAP, "a", &config_map(json!({"l": "1"}))).await;
    assert_eq!(owned(&applied, "before-first-apply", "Update", "")["f:data"]["f:k"], json!({}));
    // Invalid managedFields leave the owners unchanged.
    let mut object = client.get(CONFIG_MAP).await;
    object["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Nope"}]);
    let after = client.put(CONFIG_MAP, &object).await;
    assert_eq!(after["metadata"]["managedFields"], applied["metadata"]["managedFields"]);
}

#[tokio::test]
async fn strategic_merge_patches_merge_lists_by_key() {
    let client = Client::new().await;
    client.post(DEPLOYMENTS, &deployment()).await;
    let patch = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "b", "image": "b:1"}, {"name": "a", "ports": [{"$patch": "delete", "containerPort": 80}]}],
    }}}});
    let after = client.patch(STRATEGIC, DEPLOYMENT, &patch).await;
    let containers = &after["spec"]["template"]["spec"]["containers"];
    assert_eq!((&containers[0]["name"], &containers[1]["image"]), (&json!("b"), &json!("a:1")));
    assert!(containers[1]["ports"].as_array().is_none_or(Vec::is_empty));
    let no_key = json!({"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}});
    let (code, status) = client.call(Method::PATCH, DEPLOYMENT, STRATEGIC, &no_key).await;
    assert_eq!(code, 422, "{status}");
    assert!(status["message"].as_str().unwrap().contains("spec.template.spec.containers"), "{status}");
    let bad = json!({"spec": {"$patch": "nonsense"}});
    assert_eq!(client.call(Method::PATCH, DEPLOYMENT, STRATEGIC, &bad).await.0, 400);
}

#[test]
fn creators_of_built_in_kinds_own_the_same_fields_as_upstream() {
    let examples: Vec<Value> = serde_json::from_str(include_str!("owned.json")).unwrap();
    assert!(examples.len() > 10);
    let fields = Fields::default();
    for example in &examples {
        let mut object = example["object"].clone();
        let (api_version, kind) =
            (example["object"]["apiVersion"].as_str().unwrap(), example["object"]["kind"].as_str().unwrap());
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let def = ResourceDef {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            ..ResourceDef::default()
        };
        let resource = Resource::new(def, Arc::new(Plain));
        let by = Manager { name: "creator", subresource: "", now: jiff::Timestamp::UNIX_EPOCH };
        fields.track(&resource, None, &mut object, &by).unwrap();
        assert_eq!(
            owned(&object, "creator", "Update", ""),
            example["owned"],
            "{api_version} {}",
            resource.def.kind
        );
    }
}
