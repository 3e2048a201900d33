//! The default objects of every namespace: ServiceAccount `default` and ConfigMap `kube-root-ca.crt`.

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::fields::put;
use crate::objects::{Objects, UpdateOptions, WriteContext};
use crate::status::Status;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const TOPICS: &[(&str, &str)] = &[("", "namespaces"), ("", "serviceaccounts"), ("", "configmaps")];
const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";

/// Maintains both in every namespace until the task is dropped; without a CA only the ServiceAccount.
pub(super) async fn run(objects: Objects, ca_pem: Option<String>) {
    let context = WriteContext::internal("serviceaccount-controller");
    let mut follower = Follower::new(objects.storage().clone(), Topics::Some(TOPICS));
    let mut retries: Retries<String> = Retries::default();
    loop {
        let mut work: BTreeSet<String> = BTreeSet::new();
        tokio::select! {
            changes = follower.next() => work.extend(changes.iter().filter_map(affected_namespace)),
            () = retries.due() => work.extend(retries.take_due()),
        }
        for namespace in work {
            match ensure(&objects, &context, &namespace, ca_pem.as_deref()).await {
                Ok(()) => retries.succeeded(&namespace),
                // The namespace was deleted, or is being deleted.
                Err(status) if status.is_not_found() || status.code == 403 => retries.succeeded(&namespace),
                Err(error) => {
                    tracing::warn!(namespace, %error, "failed to create the default objects of the namespace; will retry");
                    retries.failed(namespace);
                }
            }
        }
    }
}

/// The namespace to check after a change.
fn affected_namespace(change: &Change) -> Option<String> {
    let (version, gone) = match change {
        Change::Reset => return None,
        Change::Present(version) => (version, false),
        Change::Gone(version) => (version, true),
    };
    let key = version.key();
    match key.resource() {
        "namespaces" => (!gone && version.meta().deletion_timestamp.is_none()).then(|| key.name().to_owned()),
        "serviceaccounts" => (gone && key.name() == ACCOUNT).then(|| key.namespace().to_owned()),
        _ => (key.name() == ROOT_CA).then(|| key.namespace().to_owned()),
    }
}

async fn ensure(
    objects: &Objects,
    context: &WriteContext,
    namespace: &str,
    ca_pem: Option<&str>,
) -> Result<(), Status> {
    let resources = objects.resources();
    let Some(namespaces) = resources.resource("", "v1", "namespaces") else { return Ok(()) };
    if objects.get(&namespaces, "", namespace)?.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    if let Some(accounts) = resources.resource("", "v1", "serviceaccounts")
        && objects.get(&accounts, namespace, ACCOUNT).is_err()
    {
        let object = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace},
        });
        tolerate_existing(objects.create(context, &accounts, namespace, object).await.map(drop))?;
    }
    let (Some(maps), Some(ca_pem)) = (resources.resource("", "v1", "configmaps"), ca_pem) else {
        return Ok(());
    };
    match objects.get_value(&maps, namespace, ROOT_CA).await {
        Ok(found) if found["data"] == json!({"ca.crt": ca_pem}) => Ok(()),
        Ok(_) => {
            let options = UpdateOptions { unconditional: true, ..UpdateOptions::default() };
            let change = |old: Option<&Value>| {
                let mut object = old.cloned().unwrap_or_default();
                put(&mut object, &["data"], json!({"ca.crt": ca_pem}));
                Ok(object)
            };
            objects.update(context, &maps, namespace, ROOT_CA, options, change).await.map(drop)
        }
        Err(status) if status.is_not_found() => {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": ROOT_CA, "namespace": namespace, "annotations": {
                    "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
                }},
                "data": {"ca.crt": ca_pem},
            });
            tolerate_existing(objects.create(context, &maps, namespace, object).await.map(drop))
        }
        Err(status) => Err(status),
    }
}

fn tolerate_existing(result: Result<(), Status>) -> Result<(), Status> {
    match result {
        Err(status) if status.is_already_exists() => Ok(()),
        result => result,
    }
}
