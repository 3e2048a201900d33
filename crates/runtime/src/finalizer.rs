//! Finalizers, added and removed by JSON patch with `test`, so that no other finalizer is lost.

use std::fmt::Debug;

use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Error;

/// Adds `finalizer` if the object lacks it; returns whether a write was made.
///
/// Must come before the first side effect. Never adds one to an object that is being deleted.
pub async fn ensure<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<bool, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    ensure_all(api, object, &[finalizer]).await
}

/// The same for several finalizers, with one write.
pub async fn ensure_all<K>(api: &Api<K>, object: &K, finalizers: &[&str]) -> Result<bool, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let present = object.finalizers();
    let missing: Vec<&str> =
        finalizers.iter().copied().filter(|wanted| !present.iter().any(|f| f == wanted)).collect();
    if missing.is_empty() || object.meta().deletion_timestamp.is_some() {
        return Ok(false);
    }
    let patch = if object.meta().finalizers.is_none() {
        vec![
            // A JSON Patch cannot test for a missing list; the resource version is tested instead.
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version()}),
            json!({"op": "add", "path": "/metadata/finalizers", "value": missing}),
        ]
    } else {
        let mut patch = vec![json!({"op": "test", "path": "/metadata/finalizers", "value": present})];
        let add = |name: &&str| json!({"op": "add", "path": "/metadata/finalizers/-", "value": name});
        patch.extend(missing.iter().map(add));
        patch
    };
    send(api, object, patch, "add finalizer to").await.map(|()| true)
}

/// Removes `finalizer` if the object has it; returns whether a write was made. A gone object is done.
pub async fn remove<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<bool, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    remove_all(api, object, &[finalizer]).await
}

/// The same for several finalizers, with one write.
pub async fn remove_all<K>(api: &Api<K>, object: &K, finalizers: &[&str]) -> Result<bool, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut patch = Vec::new();
    // From the end, so that the positions of the others stay.
    for (position, name) in object.finalizers().iter().enumerate().rev() {
        if finalizers.contains(&name.as_str()) {
            let path = format!("/metadata/finalizers/{position}");
            patch.push(json!({"op": "test", "path": path, "value": name}));
            patch.push(json!({"op": "remove", "path": path}));
        }
    }
    if patch.is_empty() {
        return Ok(false);
    }
    match send(api, object, patch, "remove finalizer from").await {
        Err(Error::Api { source, .. }) if crate::error::is_not_found(&source) => Ok(false),
        sent => sent.map(|()| true),
    }
}

async fn send<K>(api: &Api<K>, object: &K, mut patch: Vec<Value>, doing: &str) -> Result<(), Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    // The uid guards against a namesake that was created since.
    if let Some(uid) = object.uid() {
        patch.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": uid}));
    }
    let operation = format!("{doing} {}", crate::ObjectKey::of(object));
    let patch: json_patch::Patch =
        serde_json::from_value(Value::Array(patch)).map_err(Error::other(&operation))?;
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Json::<()>(patch)).await {
        Ok(_) => Ok(()),
        // A failed `test` means that our view was old.
        Err(kube::Error::Api(status)) if status.code == 422 => Err(Error::Stale(operation)),
        Err(source) => Err(Error::Api { operation, source }),
    }
}
