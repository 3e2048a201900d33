//! Deletes token Secrets together with their ServiceAccount. (`auth::serviceaccount::TokenSecrets` completes them when
//! they are written.)

use super::follow::{Change, Follower, Topics};
use super::retry::Retries;
use crate::auth::serviceaccount::legacy;
use crate::objects::{DeleteOptions, Objects, WriteContext};
use crate::status::Status;
use crate::storage::{Key, Version};
use std::collections::{BTreeSet, HashMap};

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
                        Change::Reset => tokens = Tokens::default(),
                        Change::Present(v) if v.key().resource() == "secrets" && is_token(&v) => {
                            if let Some(account) = account_of(&v) {
                                tokens.insert(v.key(), account);
                                work.insert(v.key().clone());
                            }
                        }
                        Change::Gone(v) if v.key().resource() == "secrets" => tokens.remove(v.key()),
                        Change::Gone(account) => work.extend(tokens.of(account.key())),
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

/// The token Secrets of each ServiceAccount: a namespace may have thousands of both.
#[derive(Default)]
struct Tokens {
    by_account: HashMap<Key, BTreeSet<Key>>,
    accounts: HashMap<Key, Key>,
}

impl Tokens {
    fn insert(&mut self, token: &Key, account: Key) {
        // The annotation may name another account than before.
        self.remove(token);
        self.by_account.entry(account.clone()).or_default().insert(token.clone());
        self.accounts.insert(token.clone(), account);
    }

    fn remove(&mut self, token: &Key) {
        let Some(account) = self.accounts.remove(token) else { return };
        if let Some(tokens) = self.by_account.get_mut(&account) {
            tokens.remove(token);
            if tokens.is_empty() {
                self.by_account.remove(&account);
            }
        }
    }

    fn of(&self, account: &Key) -> impl Iterator<Item = Key> {
        self.by_account.get(account).into_iter().flatten().cloned()
    }
}

fn account_of(secret: &Version) -> Option<Key> {
    let decoded = secret.decode();
    Some(account_key(secret.key().namespace(), legacy::account_name(&decoded)?))
}

fn account_key(namespace: &str, name: &str) -> Key {
    Key::new("", "serviceaccounts", namespace, name)
}

/// Searches the bytes, to avoid decoding every Secret; a false positive only costs the decoding.
fn is_token(version: &Version) -> bool {
    memchr::memmem::find(&version.bytes(), legacy::TYPE.as_bytes()).is_some()
}

async fn sync(objects: &Objects, context: &WriteContext, key: &Key) -> Result<(), Status> {
    let Some(secrets) = objects.resources().resource("", "v1", "secrets") else { return Ok(()) };
    let Some(version) = objects.storage().index().get(key) else { return Ok(()) };
    let secret = version.decode();
    let Some(name) = legacy::account_name(&secret) else { return Ok(()) };
    let account = objects.storage().index().get(&account_key(key.namespace(), name));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_account_concerns_only_its_own_tokens() {
        let secret = |name: &str| Key::new("", "secrets", "ns", name);
        let (a, b) = (account_key("ns", "a"), account_key("ns", "b"));
        let mut tokens = Tokens::default();
        tokens.insert(&secret("a-1"), a.clone());
        tokens.insert(&secret("a-2"), a.clone());
        tokens.insert(&secret("b-1"), b.clone());
        assert_eq!(tokens.of(&a).collect::<Vec<_>>(), [secret("a-1"), secret("a-2")]);
        // The Secret names another account now.
        tokens.insert(&secret("a-2"), b.clone());
        assert_eq!(tokens.of(&b).collect::<Vec<_>>(), [secret("a-2"), secret("b-1")]);
        tokens.remove(&secret("a-1"));
        assert_eq!(tokens.of(&a).count(), 0);
        assert!(!tokens.by_account.contains_key(&a) && !tokens.accounts.contains_key(&secret("a-1")));
    }
}
