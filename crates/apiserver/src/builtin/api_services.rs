//! `apiregistration.k8s.io/v1 APIService`: one read-only object per served group and version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::rfc3339_seconds;
use crate::object::ObjectExt;
use crate::objects::{DeleteOptions, ListOptions, Objects, UpdateOptions, WriteContext};
use crate::resources::{Resource, Snapshot, group_priority};
use crate::status::Status;

const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Keeps the objects in sync with the served resources while it is polled. Writes only differences.
pub(crate) async fn run(objects: Objects) {
    let mut changes = objects.resources().subscribe();
    loop {
        changes.mark_unchanged();
        if let Err(error) = sync(&objects).await {
            tracing::warn!(%error, "failed to write APIServices; will retry");
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn sync(objects: &Objects) -> Result<(), Status> {
    let snapshot = objects.resources().snapshot();
    let Some(resource) = snapshot.resource("apiregistration.k8s.io", "v1", "apiservices") else {
        return Ok(());
    };
    let wanted = wanted(&snapshot, &rfc3339_seconds(objects.clock().now()));
    let context = WriteContext::internal("apiservices");
    let stored = objects.list(resource, None, &ListOptions::default()).await?;
    for version in &stored.items {
        let name = version.key().name();
        if !wanted.contains_key(name) {
            objects.delete(&context, resource, "", name, &DeleteOptions::default()).await?;
        }
    }
    for (name, object) in wanted {
        let current = stored.items.iter().find(|version| version.key().name() == name);
        if current.is_some_and(|version| version.decode()["spec"] == object["spec"]) {
            continue;
        }
        put(objects, &context, resource, &name, object).await?;
    }
    Ok(())
}

async fn put(
    objects: &Objects,
    context: &WriteContext,
    resource: &Arc<Resource>,
    name: &str,
    object: Value,
) -> Result<(), Status> {
    let options = UpdateOptions { create: true, unconditional: true, ..UpdateOptions::default() };
    let change = |old: Option<&Value>| {
        let mut new = object.clone();
        if let Some(old) = old {
            new.set_meta_str("resourceVersion", old.resource_version());
        }
        Ok(new)
    };
    objects.update(context, resource, "", name, options, change).await.map(drop)
}

fn wanted(snapshot: &Snapshot, now: &str) -> BTreeMap<String, Value> {
    let mut wanted = BTreeMap::new();
    for group in snapshot.groups() {
        let count = group.versions.len();
        for (at, version) in group.versions.iter().enumerate() {
            let name = format!("{version}.{}", group.group);
            let mut spec = json!({
                "version": version, "groupPriorityMinimum": group_priority(&group.group),
                "versionPriority": (count - at) * 10,
            });
            if !group.group.is_empty() {
                spec["group"] = group.group.clone().into();
            }
            let condition = json!({
                "type": "Available", "status": "True", "lastTransitionTime": now, "reason": "Local",
                "message": "Local APIServices are always available",
            });
            let object = json!({
                "metadata": {"name": name, "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
                "spec": spec, "status": {"conditions": [condition]},
            });
            wanted.insert(name, object);
        }
    }
    wanted
}
