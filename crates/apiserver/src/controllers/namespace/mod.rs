//! Namespaces: creates the system namespaces, and deletes the content of namespaces under deletion.

mod admission;
mod conditions;

pub use admission::NamespaceLifecycle;

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::fields::put;
use crate::objects::{DeleteOptions, Objects, UpdateOptions, WriteContext};
use crate::resources::{Propagation, Resource};
use crate::status::{GroupName, Status};
use crate::storage::{Key, Range, Version};
use conditions::{Remaining, Round};
use futures::StreamExt;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Created at start; cannot be deleted, except for the last.
pub const SYSTEM: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// The finalizer in `spec.finalizers`.
const FINALIZER: &str = "kubernetes";
/// How many objects are processed concurrently; the store commits them in groups.
const PARALLEL: usize = 64;
/// How many namespaces are emptied at once.
const CONCURRENT_NAMESPACES: usize = 8;

/// Creates the system namespaces.
pub async fn ensure_system(objects: &Objects) -> Result<(), Status> {
    let Some(resource) = objects.resources().resource("", "v1", "namespaces") else { return Ok(()) };
    let context = WriteContext::internal("kube-apiserver");
    for name in SYSTEM {
        if objects.get(&resource, "", name).is_ok() {
            continue;
        }
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        match objects.create(&context, &resource, "", object).await {
            Err(status) if !status.is_already_exists() => return Err(status),
            _ => {}
        }
    }
    Ok(())
}

/// Empties and removes namespaces under deletion until the task is dropped.
pub(super) async fn run(objects: Objects) {
    let controller =
        Controller { context: WriteContext::internal("namespace-controller"), objects: objects.clone() };
    let mut resources = objects.resources().subscribe();
    let mut namespaces = Follower::new(objects.storage().clone(), Topics::Some(&[("", "namespaces")]));
    // The content is watched only while a namespace is being deleted.
    let mut content: Option<Follower> = None;
    let mut terminating: HashSet<String> = HashSet::new();
    let mut retries: Retries<String> = Retries::default();
    loop {
        let mut work: BTreeSet<String> = BTreeSet::new();
        tokio::select! {
            changes = namespaces.next() => {
                for change in changes {
                    match change {
                        Change::Reset => terminating.clear(),
                        Change::Present(version) => {
                            if version.meta().deletion_timestamp.is_some() {
                                terminating.insert(version.key().name().to_owned());
                                work.insert(version.key().name().to_owned());
                            }
                        }
                        Change::Gone(version) => drop(terminating.remove(version.key().name())),
                    }
                }
            }
            changes = next_of(&mut content) => {
                let touched = changes.iter().filter_map(|change| match change {
                    Change::Present(v) | Change::Gone(v) => Some(v.key().namespace()),
                    Change::Reset => None,
                });
                work.extend(touched.filter(|ns| terminating.contains(*ns)).map(str::to_owned));
            }
            // A kind that is newly or no longer served may change what remains.
            Ok(()) = resources.changed() => work.extend(terminating.iter().cloned()),
            () = retries.due() => work.extend(retries.take_due()),
        }
        if terminating.is_empty() {
            content = None;
        } else if content.is_none() {
            let mut follower = Follower::new(objects.storage().clone(), Topics::All);
            // The first round itself finds all existing objects.
            follower.ready();
            content = Some(follower);
        }
        let syncs = work.into_iter().map(|namespace| async {
            let result = controller.sync(&namespace).await;
            (namespace, result)
        });
        let results: Vec<_> =
            futures::stream::iter(syncs).buffer_unordered(CONCURRENT_NAMESPACES).collect().await;
        for (namespace, result) in results {
            match result {
                Ok(()) => retries.succeeded(&namespace),
                Err(error) => {
                    tracing::warn!(namespace, %error, "namespace deletion failed; will retry");
                    retries.failed(namespace);
                }
            }
        }
    }
}

async fn next_of(follower: &mut Option<Follower>) -> Vec<Change> {
    match follower {
        Some(follower) => follower.next().await,
        None => std::future::pending().await,
    }
}

struct Controller {
    objects: Objects,
    context: WriteContext,
}

impl Controller {
    /// One round: delete what can be deleted, then report what remains or remove the namespace.
    async fn sync(&self, name: &str) -> Result<(), Status> {
        let Some(resource) = self.objects.resources().resource("", "v1", "namespaces") else { return Ok(()) };
        let Some(namespace) = self.objects.storage().index().get(&resource.key("", name)) else {
            return Ok(());
        };
        if namespace.meta().deletion_timestamp.is_none() {
            return Ok(());
        }
        let kinds = self.content_kinds();
        let failures = self.delete_content(name, &kinds).await;
        let remaining = self.remaining(name, &kinds);
        let round = Round { remaining, failures };
        let empty = round.remaining.is_empty();
        self.report(&resource, name, &round).await?;
        if empty {
            self.finalize(&resource, name).await?;
        }
        if round.failures.is_empty() { Ok(()) } else { Err(Status::internal(round.failures.join(", "))) }
    }

    /// All namespaced kinds that can be deleted; pods first, as upstream.
    fn content_kinds(&self) -> Vec<Arc<Resource>> {
        let mut kinds = self.objects.resources().snapshot().stored();
        kinds.retain(|r| r.def.namespaced && r.has_verb("delete"));
        kinds.sort_by_key(|r| r.def.plural != "pods" || !r.def.group.is_empty());
        kinds
    }

    fn list(&self, resource: &Resource, namespace: &str) -> Vec<Arc<Version>> {
        let range = Range {
            group: resource.storage_group(),
            resource: &resource.def.plural,
            namespace: Some(namespace),
            start: None,
        };
        self.objects.storage().index().list(&range).0
    }

    async fn delete_content(&self, namespace: &str, kinds: &[Arc<Resource>]) -> Vec<String> {
        let mut failures = Vec::new();
        for resource in kinds {
            let live =
                self.list(resource, namespace).into_iter().filter(|v| v.meta().deletion_timestamp.is_none());
            let deletes = live.map(|version| async move {
                let key: &Key = version.key();
                let options = DeleteOptions {
                    propagation: Some(Propagation::Background),
                    uid: Some(version.meta().uid.to_string()),
                    ..DeleteOptions::default()
                };
                let result =
                    self.objects.delete(&self.context, resource, namespace, key.name(), &options).await;
                match result {
                    Err(e) if !e.is_not_found() && !e.is_conflict() => {
                        Some(format!("{}: {e}", named(resource, key.name())))
                    }
                    _ => None,
                }
            });
            let results: Vec<_> = futures::stream::iter(deletes).buffer_unordered(PARALLEL).collect().await;
            failures.extend(results.into_iter().flatten());
        }
        failures
    }

    fn remaining(&self, namespace: &str, kinds: &[Arc<Resource>]) -> Vec<Remaining> {
        let of_kind = |resource: &Arc<Resource>| {
            let group_resource = resource.group_resource().to_string();
            self.list(resource, namespace).into_iter().map(move |version| Remaining {
                resource: group_resource.clone(),
                name: version.key().name().to_owned(),
                finalizers: version.meta().finalizers.iter().map(ToString::to_string).collect(),
            })
        };
        kinds.iter().flat_map(of_kind).collect()
    }

    async fn report(&self, resource: &Arc<Resource>, name: &str, round: &Round) -> Result<(), Status> {
        let now = self.objects.clock().now();
        self.change(resource, name, "status", |object| {
            let all = conditions::conditions(&object["status"]["conditions"], round, now);
            put(object, &["status", "phase"], "Terminating");
            put(object, &["status", "conditions"], all);
        })
        .await
    }

    async fn finalize(&self, resource: &Arc<Resource>, name: &str) -> Result<(), Status> {
        self.change(resource, name, "finalize", |object| {
            let mut list = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
            list.retain(|f| f.as_str() != Some(FINALIZER));
            put(object, &["spec", "finalizers"], list);
        })
        .await
    }

    async fn change(
        &self,
        resource: &Arc<Resource>,
        name: &str,
        subresource: &str,
        change: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<(), Status> {
        let options = UpdateOptions { subresource, unconditional: true, ..UpdateOptions::default() };
        let result = self
            .objects
            .update(&self.context, resource, "", name, options, |old| {
                let mut object = old.cloned().unwrap_or_default();
                change(&mut object);
                Ok(object)
            })
            .await;
        match result {
            Err(status) if !status.is_not_found() => Err(status),
            _ => Ok(()),
        }
    }
}

fn named(resource: &Resource, name: &str) -> String {
    let GroupName { group, name: plural } = resource.group_resource();
    if group.is_empty() { format!("{plural}/{name}") } else { format!("{plural}.{group}/{name}") }
}
