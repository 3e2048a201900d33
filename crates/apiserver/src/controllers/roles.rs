//! The bootstrap roles, and the aggregation of ClusterRoles.

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::fields::put;
use crate::auth::rbac::aggregation::{self, Role};
use crate::auth::rbac::bootstrap::{self, Bootstrap, Step};
use crate::auth::rbac::policy::GROUP;
use crate::objects::{DeleteOptions, Objects, UpdateOptions, WriteContext};
use crate::status::Status;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The store commits concurrent writes together.
const PARALLEL: usize = 32;

/// Updates the bootstrap roles and bindings.
pub async fn ensure_bootstrap(objects: &Objects) -> Result<(), Status> {
    let context = WriteContext::internal("rbac-bootstrap");
    let all = bootstrap::objects();
    // Boxed and collected; otherwise the compiler cannot prove that this future is `Send`.
    let steps: Vec<_> = all.iter().map(|wanted| ensure(objects, &context, wanted).boxed()).collect();
    let results: Vec<_> = futures::stream::iter(steps).buffer_unordered(PARALLEL).collect().await;
    results.into_iter().collect()
}

async fn ensure(objects: &Objects, context: &WriteContext, wanted: &Bootstrap) -> Result<(), Status> {
    let Some(resource) = objects.resources().resource(GROUP, "v1", wanted.kind.resource()) else {
        return Ok(());
    };
    let (namespace, name) = (wanted.namespace, wanted.name.as_str());
    let live = objects.get_value(&resource, namespace, name).await.ok();
    match bootstrap::reconcile(live.as_ref(), &wanted.object) {
        Step::Keep => Ok(()),
        Step::Create(object) => objects.create(context, &resource, namespace, object).await.map(drop),
        Step::Update(_) => {
            let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
            let change = |old: Option<&Value>| match bootstrap::reconcile(old, &wanted.object) {
                Step::Update(object) => Ok(object),
                _ => Ok(old.cloned().unwrap_or_default()),
            };
            objects.update(context, &resource, namespace, name, options, change).await.map(drop)
        }
        Step::Replace(object) => {
            objects.delete(context, &resource, namespace, name, &DeleteOptions::default()).await?;
            objects.create(context, &resource, namespace, object).await.map(drop)
        }
    }
}

/// Keeps the rules of aggregated ClusterRoles up to date until the task is dropped.
pub(super) async fn run(objects: Objects) {
    let context = WriteContext::internal("clusterrole-aggregation-controller");
    let mut follower = Follower::new(objects.storage().clone(), Topics::Some(&[(GROUP, "clusterroles")]));
    let mut roles: BTreeMap<String, Role> = BTreeMap::new();
    let mut retries: Retries<String> = Retries::default();
    loop {
        tokio::select! {
            changes = follower.next() => {
                for change in changes {
                    match change {
                        Change::Reset => roles.clear(),
                        Change::Present(v) => {
                            roles.insert(v.key().name().to_owned(), Role::parse(&v.bytes()).unwrap_or_default());
                        }
                        Change::Gone(v) => drop(roles.remove(v.key().name())),
                    }
                }
            }
            () = retries.due() => drop(retries.take_due()),
        }
        let outdated: Vec<(String, Vec<_>)> = roles
            .iter()
            .filter_map(|(name, role)| {
                let rules = aggregation::desired_rules(name, &roles)?;
                (rules != role.rules).then(|| (name.clone(), rules))
            })
            .collect();
        for (name, rules) in outdated {
            match write(&objects, &context, &name, &rules).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(name, %error, "aggregation failed; will retry");
                    retries.failed(name);
                }
                _ => retries.succeeded(&name),
            }
        }
    }
}

async fn write(
    objects: &Objects,
    context: &WriteContext,
    name: &str,
    rules: &[crate::auth::rbac::Rule],
) -> Result<(), Status> {
    let Some(resource) = objects.resources().resource(GROUP, "v1", "clusterroles") else { return Ok(()) };
    let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
    let change = |old: Option<&Value>| {
        let mut object = old.cloned().unwrap_or_default();
        put(&mut object, &["rules"], json!(rules));
        Ok(object)
    };
    objects.update(context, &resource, "", name, options, change).await.map(drop)
}
