//! Deletes token Secrets together with their ServiceAccount. (`auth::serviceaccount::TokenSecrets` completes them when
//! they are written.)

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::serviceaccount::legacy;
use crate::objects::{DeleteOptions, Objects, WriteContext};
use crate::status::Status;
use crate::storage::{Key, Range, Version};
use std::collections::BTreeSet;
use std::sync::Arc;

const TOPICS: &[(&str, &str)] = &[("", "secrets"), ("", "serviceaccounts")];

/// Deletes token Secrets without ServiceAccount until the task is dropped.
pub(super) async fn run(objects: Objects) {
    let context = WriteContext::internal("tokens-controller");
    let mut follower = Follower::new(objects.storage().clone(), Topics::Some(TOPICS));
    let mut retries: Retries<Key> = Retries::default();
    loop {
        let mut work: BTreeSet<Key> = BTreeSet::new();
        tokio::select! {
            changes = follower.next() => {
                for change in changes {
                    match change {
                        Change::Present(v) if v.key().resource() == "secrets" && is_token(&v) => {
                            work.insert(v.key().clone());
                        }
                        Change::Gone(v) if v.key().resource() == "serviceaccounts" => {
                            work.extend(token_secrets(&objects, v.key().namespace()));
                        }
                        _ => {}
                    }
                }
            }
            () = retries.due() => work.extend(retries.take_due()),
        }
        for key in work {
            match sync(&objects, &context, &key).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(%key, %error, "failed to process a token Secret; will retry");
                    retries.failed(key);
                }
                _ => retries.succeeded(&key),
            }
        }
    }
}

/// Searches the bytes, to avoid decoding every Secret; a false positive only costs the decoding.
fn is_token(version: &Version) -> bool {
    let (bytes, wanted) = (version.bytes(), legacy::TYPE.as_bytes());
    bytes.windows(wanted.len()).any(|w| w == wanted)
}

fn token_secrets(objects: &Objects, namespace: &str) -> Vec<Key> {
    let range = Range { group: "", resource: "secrets", namespace: Some(namespace), start: None };
    let (all, _) = objects.storage().index().list(&range);
    all.iter().filter(|v| is_token(v)).map(|v| v.key().clone()).collect()
}

async fn sync(objects: &Objects, context: &WriteContext, key: &Key) -> Result<(), Status> {
    let Some(secrets) = objects.resources().resource("", "v1", "secrets") else { return Ok(()) };
    let Some(version) = objects.storage().index().get(key) else { return Ok(()) };
    let secret = version.decode();
    let Some(name) = legacy::account_name(&secret) else { return Ok(()) };
    let account: Option<Arc<Version>> =
        objects.storage().index().get(&Key::new("", "serviceaccounts", key.namespace(), name));
    if account.is_some_and(|a| !legacy::belongs_to_another(&secret, &a.meta().uid)) {
        return Ok(());
    }
    let options = DeleteOptions {
        uid: Some(version.meta().uid.to_string()),
        resource_version: Some(version.revision().to_string()),
        ..DeleteOptions::default()
    };
    objects.delete(context, &secrets, key.namespace(), key.name(), &options).await.map(drop)
}
