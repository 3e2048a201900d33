//! Deletes token Secrets together with their ServiceAccount. (`auth::serviceaccount::TokenSecrets` completes them when
//! they are written.)

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::serviceaccount::legacy;
use crate::objects::{DeleteOptions, Objects, WriteContext};
use crate::status::Status;
use crate::storage::{Key, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TOPICS: &[(&str, &str)] = &[("", "secrets"), ("", "serviceaccounts")];

/// Deletes token Secrets without ServiceAccount until the task is dropped.
pub(super) async fn run(objects: Objects) {
    let context = WriteContext::internal("tokens-controller");
    let mut follower = Follower::new(objects.storage().clone(), Topics::Some(TOPICS));
    let mut retries: Retries<Key> = Retries::default();
    let mut tokens = Tokens::default();
    loop {
        let mut work: BTreeSet<Key> = BTreeSet::new();
        tokio::select! {
            changes = follower.next() => {
                for change in changes {
                    match change {
                        Change::Reset => tokens.clear(),
                        Change::Present(v) if v.key().resource() == "secrets" && is_token(&v) => {
                            tokens.entry(v.key().namespace().to_owned()).or_default().insert(v.key().clone());
                            work.insert(v.key().clone());
                        }
                        Change::Gone(v) if v.key().resource() == "secrets" => forget(&mut tokens, v.key()),
                        Change::Gone(v) => {
                            work.extend(tokens.get(v.key().namespace()).into_iter().flatten().cloned());
                        }
                        Change::Present(_) => {}
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

/// The token Secrets of each namespace: a namespace may have thousands of other Secrets.
type Tokens = BTreeMap<String, BTreeSet<Key>>;

fn forget(tokens: &mut Tokens, key: &Key) {
    if let Some(known) = tokens.get_mut(key.namespace()) {
        known.remove(key);
        if known.is_empty() {
            tokens.remove(key.namespace());
        }
    }
}

/// Searches the bytes, to avoid decoding every Secret; a false positive only costs the decoding.
fn is_token(version: &Version) -> bool {
    memchr::memmem::find(version.bytes(), legacy::TYPE.as_bytes()).is_some()
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
