//! Patches of the API, all applied to the same Pod.

use std::sync::{Arc, LazyLock};

use drover_apiserver::limits::{COPY_BYTES, OBJECT_BYTES, json_bytes};
use drover_apiserver::patch::{FieldManager, Fields, Manager, StrategicMerge, json_patch, merge_patch};
use drover_apiserver::resources::{Resource, ResourceTable};
use serde_json::{Value, json};

struct Pods {
    fields: Fields,
    resource: Arc<Resource>,
    _registry: Arc<ResourceTable>,
}

static PODS: LazyLock<Pods> = LazyLock::new(|| {
    let registry = Arc::new(ResourceTable::new(drover_apiserver::builtin::resources()));
    let fields = Fields::default();
    fields.attach(&registry);
    let resource = registry.resource("", "v1", "pods").unwrap();
    Pods { fields, resource, _registry: registry }
});

fn manager(name: &str) -> Manager<'_> {
    Manager { name, subresource: "", now: jiff::Timestamp::UNIX_EPOCH }
}

/// A Pod with fields of another manager.
fn pod() -> Value {
    let container = json!({
        "name": "c", "image": "i", "env": [{"name": "E", "value": "1"}], "ports": [{"containerPort": 80, "protocol": "TCP"}],
    });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "1"}, "finalizers": ["x/z", "a/b"]},
        "spec": {"containers": [container]},
    });
    PODS.fields.track(&PODS.resource, None, &mut pod, &manager("first")).unwrap();
    pod
}

/// A JSON patch: the result is within the size limit of objects, and is valid JSON.
pub fn json_patches(data: &[u8]) {
    let pod = pod();
    let Ok(patched) = json_patch(&pod, data) else { return };
    let bytes = json_bytes(&patched);
    assert!(bytes <= OBJECT_BYTES && bytes <= json_bytes(&pod) + data.len() * 6 + COPY_BYTES);
    readable(&patched);
}

/// A merge patch: its values are set, and applying it again changes nothing.
pub fn merge_patches(data: &[u8]) {
    let Ok(patch) = serde_json::from_slice::<Value>(data) else { return };
    let mut once = pod();
    merge_patch(&mut once, &patch);
    let mut twice = once.clone();
    merge_patch(&mut twice, &patch);
    assert_eq!(once, twice, "a merge patch is idempotent");
    tracked(once);
}

/// A strategic merge patch: returns an error or an object.
pub fn strategic_patches(data: &[u8]) {
    let Ok(patch) = serde_json::from_slice::<Value>(data) else { return };
    if let Ok(patched) = PODS.fields.merge(&PODS.resource, &pod(), &patch) {
        assert!(patched.is_object());
        tracked(patched);
    }
}

/// Server-side apply: returns an error or an object, and applying the same again is not a conflict.
pub fn applied(data: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Value>(data) else { return };
    let apply = |live: &Value, force: bool| {
        PODS.fields.apply(&PODS.resource, Some(live), &config, &manager("second"), force)
    };
    let live = pod();
    let _ = apply(&live, false);
    if let Ok(object) = apply(&live, true) {
        readable(&object);
        assert!(apply(&object, false).is_ok(), "a manager does not conflict with itself");
    }
}

/// Tracking the ownership of any object does not panic.
fn tracked(mut object: Value) {
    let _ = PODS.fields.track(&PODS.resource, Some(&pod()), &mut object, &manager("second"));
    readable(&object);
}

fn readable(object: &Value) {
    let text = object.to_string();
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "written output can be read");
}
