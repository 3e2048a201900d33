//! Deletes a CRD: first its instances, respecting their finalizers, then the CRD itself.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;

use super::FINALIZER;
use super::conditions::{self, Condition, is_true};
use super::controller::State;
use crate::clock::rfc3339_seconds;
use crate::object::ObjectExt;
use crate::objects::{DeleteOptions, Objects, WriteContext};
use crate::resources::Resource;
use crate::storage::{Range, Version};

/// How many instances are deleted concurrently.
const PARALLEL: usize = 64;
/// How many blocking objects a message names.
const MAX_NAMED: usize = 5;

/// Continues the deletion of all CRDs that are being deleted; true if one of them was removed.
pub(super) async fn run(state: &State) -> bool {
    let deleting = deleting(&state.crds());
    let mut gone = false;
    for version in deleting {
        gone |= one(state, &version).await;
    }
    gone
}

/// Records the kinds of which no objects may be created.
pub(super) fn mark(state: &State, crds: &[Arc<Version>]) {
    let topics: HashSet<String> = deleting(crds).iter().map(|v| topic(&v.decode())).collect();
    *state.terminating.write() = topics;
}

fn deleting(crds: &[Arc<Version>]) -> Vec<Arc<Version>> {
    let ours = |v: &&Arc<Version>| {
        v.meta().deletion_timestamp.is_some() && v.meta().finalizers.iter().any(|f| &**f == FINALIZER)
    };
    crds.iter().filter(ours).cloned().collect()
}

fn topic(crd: &Value) -> String {
    format!("{}/{}", crd["spec"].top_str("group"), crd["spec"]["names"].top_str("plural"))
}

async fn one(state: &State, version: &Version) -> bool {
    let mut crd = version.decode();
    let established = is_true(&crd, "Established");
    let left = if established { delete_instances(state, &crd).await } else { Vec::new() };
    let now = rfc3339_seconds(state.objects.clock().now());
    let condition = |status, reason, message| Condition { kind: "Terminating", status, reason, message };
    if left.is_empty() {
        let (reason, message) = match established {
            true => ("InstanceDeletionCompleted", "removed all instances"),
            false => ("NeverEstablished", "resource was never established"),
        };
        conditions::set(&mut crd, condition("False", reason, message.to_owned()), &now);
        if let Some(Value::Array(finalizers)) = crd.metadata_mut().get_mut("finalizers") {
            finalizers.retain(|f| f.as_str() != Some(FINALIZER));
        }
        return state.write(version, &crd).await;
    }
    let message = format!("CustomResource deletion is in progress; waiting for {}", blocking(&left));
    let before = crd.clone();
    conditions::set(&mut crd, condition("True", "InstanceDeletionInProgress", message), &now);
    if crd != before {
        // A conflict is harmless: the next removal of an instance triggers this again.
        state.write(version, &crd).await;
    }
    false
}

/// Deletes every instance that is not being deleted yet; returns those that remain.
async fn delete_instances(state: &State, crd: &Value) -> Vec<Arc<Version>> {
    let spec = &crd["spec"];
    let (group, plural) = (spec.top_str("group"), spec["names"].top_str("plural"));
    let range = Range { group, resource: plural, ..Range::default() };
    let instances = state.objects.storage().index().list(&range).0;
    let served = state.objects.resources().snapshot();
    let resource = served.resources().find(|r| r.def.group == group && r.def.plural == plural).cloned();
    if let Some(resource) = resource {
        let context = Arc::new(WriteContext::internal("crd-finalizer"));
        let mut work = Vec::new();
        for version in instances.iter().filter(|v| v.meta().deletion_timestamp.is_none()) {
            let (objects, context, resource) = (state.objects.clone(), context.clone(), resource.clone());
            work.push(delete(objects, context, resource, version.clone()));
        }
        futures::stream::iter(work).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
    }
    state.objects.storage().index().list(&range).0
}

async fn delete(
    objects: Objects,
    context: Arc<WriteContext>,
    resource: Arc<Resource>,
    version: Arc<Version>,
) {
    let key = version.key();
    let options = DeleteOptions::default();
    let result = objects.delete(&context, &resource, key.namespace(), key.name(), &options).await;
    if let Err(status) = result
        && !status.is_not_found()
    {
        tracing::warn!(%key, message = status.message, "failed to delete an instance of a deleted CRD");
    }
}

/// `ns/a (finalizers: x, y), b and 3 more`.
fn blocking(left: &[Arc<Version>]) -> String {
    let named: Vec<String> = left
        .iter()
        .take(MAX_NAMED)
        .map(|v| {
            let key = v.key();
            let name = match key.namespace() {
                "" => key.name().to_owned(),
                namespace => format!("{namespace}/{}", key.name()),
            };
            let finalizers: Vec<&str> = v.meta().finalizers.iter().map(|f| &**f).collect();
            if finalizers.is_empty() {
                name
            } else {
                format!("{name} (finalizers: {})", finalizers.join(", "))
            }
        })
        .collect();
    let more = left.len().saturating_sub(MAX_NAMED);
    let named = named.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}
