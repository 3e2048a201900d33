//! Server-side apply of built-in kinds.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::*;
use crate::admission::{Admission, AdmissionRequest, Operation};
use crate::resources::Resource;
use crate::status::Status;

#[tokio::test]
async fn apply_creates_then_updates_then_leaves_unchanged() {
    let client = Client::new().await;
    let config = config_map(json!({"k": "1"}));
    let (code, _) = client.call(Method::PATCH, CONFIG_MAP, APPLY, &config).await;
    assert_eq!(code, 422, "an apply without fieldManager");
    let (code, created) = client.try_apply(CONFIG_MAP, "a", &config).await;
    assert_eq!(code, 201);
    assert_eq!(owned(&created, "a", "Apply", ""), json!({"f:data": {"f:k": {}}}));
    let (code, same) = client.try_apply(CONFIG_MAP, "a", &config).await;
    assert_eq!((code, &same["metadata"]["resourceVersion"]), (200, &created["metadata"]["resourceVersion"]));
    let changed = client.apply(CONFIG_MAP, "a", &config_map(json!({"k": "2"}))).await;
    assert_eq!(changed["data"], json!({"k": "2"}));
    assert_ne!(changed["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn kubernetes_api_check_23_two_appliers_conflict_share_and_release_fields() {
    let client = Client::new().await;
    client.apply(CONFIG_MAP, "a", &config_map(json!({"both": "1", "mine": "1"}))).await;
    // Applying an equal value shares the field.
    client.apply(CONFIG_MAP, "b", &config_map(json!({"both": "1"}))).await;
    let (code, status) = client.try_apply(CONFIG_MAP, "b", &config_map(json!({"both": "2"}))).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    assert_eq!(status["message"], "Apply failed with 1 conflict: conflict with \"a\": .data.both");
    let cause =
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"a\"", "field": ".data.both"});
    assert_eq!(status["details"]["causes"], json!([cause]));
    // A shared field is kept when one of its owners removes it; a field with one owner is deleted.
    let after = client.apply(CONFIG_MAP, "a", &config_map(json!({"other": "1"}))).await;
    assert_eq!(after["data"], json!({"both": "1", "other": "1"}));
    // With force, the previous owner loses the field.
    client.apply(CONFIG_MAP, "a", &config_map(json!({"both": "1"}))).await;
    let path = format!("{CONFIG_MAP}?fieldManager=b&force=true");
    let forced = client.patch(APPLY, &path, &config_map(json!({"both": "2"}))).await;
    assert_eq!(forced["data"], json!({"both": "2"}));
    assert_eq!(owned(&forced, "a", "Apply", ""), Value::Null);
}

#[tokio::test]
async fn conflicts_with_updaters_name_their_version() {
    let client = Client::new().await;
    client.post(CONFIG_MAPS, &config_map(json!({"k": "1", "l": "1"}))).await;
    let (code, status) = client.try_apply(CONFIG_MAP, "a", &config_map(json!({"k": "2", "l": "2"}))).await;
    assert_eq!(code, 409);
    let message = "Apply failed with 2 conflicts: conflicts with \"tester\" using v1:\n- .data.k\n- .data.l";
    assert_eq!(status["message"], message);
}

#[tokio::test]
async fn kubernetes_api_check_24_client_side_apply_becomes_server_side_apply() {
    let client = Client::new().await;
    let mut object = config_map(json!({"k": "1", "gone": "1"}));
    let last = object.to_string();
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last});
    let path = format!("{CONFIG_MAPS}?fieldManager=kubectl-client-side-apply");
    let created = client.post(&path, &object).await;
    let (code, upgraded) = client.try_apply(CONFIG_MAP, "kubectl", &config_map(json!({"k": "2"}))).await;
    assert_eq!(code, 200, "{upgraded}");
    assert_eq!(upgraded["data"]["k"], "2");
    let annotation = &upgraded["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(
        serde_json::from_str::<Value>(annotation.as_str().unwrap()).unwrap()["data"],
        json!({"k": "2"})
    );
    // kubectl then moves the fields of its old manager to the new one, and applies again.
    let mut entries = upgraded["metadata"]["managedFields"].clone();
    let old = entries.as_array_mut().unwrap();
    old.retain(|entry| entry["operation"] == "Apply");
    let legacy = created["metadata"]["managedFields"][0]["fieldsV1"].clone();
    old[0]["fieldsV1"] = legacy;
    let migrate = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": upgraded["metadata"]["resourceVersion"]},
    ]);
    client.patch("application/json-patch+json", CONFIG_MAP, &migrate).await;
    let applied = client.apply(CONFIG_MAP, "kubectl", &config_map(json!({"k": "2"}))).await;
    assert_eq!(applied["data"], json!({"k": "2"}));
}

#[tokio::test]
async fn containers_and_ports_are_merged_by_their_keys() {
    let client = Client::new().await;
    client.apply(DEPLOYMENT, "a", &deployment()).await;
    let mut sidecar = deployment();
    sidecar["spec"] = json!({"template": {"spec": {"containers": [
        {"name": "b", "image": "b:1"},
        {"name": "a", "ports": [{"containerPort": 80, "protocol": "UDP"}]},
    ]}}});
    let both = client.apply(DEPLOYMENT, "b", &sidecar).await;
    let containers = both["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let names: Vec<_> = containers.iter().map(|container| container["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "a"]);
    assert_eq!(containers[1]["ports"].as_array().unwrap().len(), 2);
    sidecar["spec"] = json!({});
    let alone = client.apply(DEPLOYMENT, "b", &sidecar).await;
    assert_eq!(alone["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(alone["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn status_is_owned_through_its_own_endpoint_only() {
    let client = Client::new().await;
    let mut config = deployment();
    config["status"] = json!({"replicas": 9});
    let main = client.apply(DEPLOYMENT, "a", &config).await;
    assert_eq!(main["status"].get("replicas"), None);
    assert_eq!(owned(&main, "a", "Apply", "").get("f:status"), None);
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 7}, "status": {"replicas": 2}});
    let after = client.apply(&format!("{DEPLOYMENT}/status"), "a", &status).await;
    assert_eq!((&after["status"]["replicas"], &after["spec"]["replicas"]), (&json!(2), &json!(2)));
    assert_eq!(owned(&after, "a", "Apply", "status"), json!({"f:status": {"f:replicas": {}}}));
}

#[tokio::test]
async fn scale_changes_the_owner_of_replicas_only() {
    let client = Client::new().await;
    client.apply(DEPLOYMENT, "a", &deployment()).await;
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 5}});
    let path = format!("{DEPLOYMENT}/scale");
    let (code, _) = client.try_apply(&path, "hpa", &scale).await;
    assert_eq!(code, 409);
    client.put(&format!("{path}?fieldManager=hpa"), &scale).await;
    let after = client.get(DEPLOYMENT).await;
    assert_eq!(after["spec"]["replicas"], 5);
    assert_eq!(owned(&after, "hpa", "Update", "scale"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owned(&after, "a", "Apply", "")["f:spec"].get("f:replicas"), None);
}

#[tokio::test]
async fn type_errors_name_the_field() {
    let client = Client::new().await;
    let mut config = deployment();
    config["spec"]["replicas"] = json!("two");
    config["spec"]["template"]["spec"]["containers"] = json!([{"name": "a"}, {"name": "a"}]);
    let (code, status) = client.try_apply(DEPLOYMENT, "a", &config).await;
    assert_eq!(code, 400, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(".spec.replicas: expected numeric (int or float), got string"), "{message}");
    assert!(
        message.contains(".spec.template.spec.containers: duplicate entries for key [name=\"a\"]"),
        "{message}"
    );
    let mut config = config_map(json!({}));
    config["metadata"]["managedFields"] = json!([]);
    assert_eq!(client.try_apply(CONFIG_MAP, "a", &config).await.0, 400);
    let mut config = config_map(json!({}));
    config["metadata"]["uid"] = json!("x");
    assert_eq!(client.try_apply(CONFIG_MAP, "a", &config).await.0, 409);
}

/// Counts the writes of an object in a label.
struct Counter;

impl Admission for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn handles(&self, _: Operation, resource: &Resource, _: &str) -> bool {
        resource.def.kind == "ConfigMap"
    }

    fn mutate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let seen = request.old.and_then(|old| old.pointer("/metadata/labels/seen")?.as_str()?.parse().ok());
        let seen: u32 = seen.unwrap_or(0) + 1;
        object["metadata"]["labels"]["seen"] = json!(seen.to_string());
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn fields_that_admission_adds_to_an_apply_are_owned_as_an_update() {
    let options = Options { admission: vec![Arc::new(Counter)], ..Options::default() };
    let client = Client { server: ApiServer::start(options).await.unwrap() };
    for (value, seen) in [("1", "1"), ("2", "2")] {
        let applied = client.apply(CONFIG_MAP, "a", &config_map(json!({"k": value}))).await;
        assert_eq!(
            (&applied["data"]["k"], &applied["metadata"]["labels"]["seen"]),
            (&json!(value), &json!(seen))
        );
        assert_eq!(owned(&applied, "a", "Apply", ""), json!({"f:data": {"f:k": {}}}));
        assert_eq!(owned(&applied, "a", "Update", "")["f:metadata"]["f:labels"]["f:seen"], json!({}));
    }
}
