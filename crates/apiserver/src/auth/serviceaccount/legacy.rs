//! Secrets of type `kubernetes.io/service-account-token`: their required fields, and the fields that the server sets.

use super::claims::Ref;
use super::{Issuer, jwt::JwtError};
use crate::auth::fields::put;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The Secret type.
pub const TYPE: &str = "kubernetes.io/service-account-token";
/// Annotation with the name of the ServiceAccount.
pub const NAME_ANNOTATION: &str = "kubernetes.io/service-account.name";
/// Annotation with its UID.
pub const UID_ANNOTATION: &str = "kubernetes.io/service-account.uid";

/// The ServiceAccount of a token Secret; `None` for other Secrets.
pub fn account_name(secret: &Value) -> Option<&str> {
    (secret["type"].as_str() == Some(TYPE)).then(|| annotation(secret, NAME_ANNOTATION)).flatten()
}

/// Whether the Secret has the UID of another account with this name, which was deleted.
pub fn belongs_to_another(secret: &Value, uid: &str) -> bool {
    annotation(secret, UID_ANNOTATION).is_some_and(|pinned| pinned != uid)
}

/// The completed Secret, or `None` if nothing is missing.
pub fn completed(
    secret: &Value,
    account: &Ref,
    ca_pem: &str,
    issuer: &Issuer,
) -> Result<Option<Value>, JwtError> {
    let namespace = secret["metadata"]["namespace"].as_str().unwrap_or_default();
    let name = secret["metadata"]["name"].as_str().unwrap_or_default();
    let mut filled = secret.clone();
    if filled["data"]["token"].as_str().unwrap_or_default().is_empty() {
        put(&mut filled, &["data", "token"], STANDARD.encode(issuer.mint_legacy(namespace, name, account)?));
    }
    put(&mut filled, &["data", "ca.crt"], STANDARD.encode(ca_pem));
    put(&mut filled, &["data", "namespace"], STANDARD.encode(namespace));
    put(&mut filled, &["metadata", "annotations", UID_ANNOTATION], account.uid.as_str());
    Ok((filled != *secret).then_some(filled))
}

fn annotation<'a>(secret: &'a Value, key: &str) -> Option<&'a str> {
    secret["metadata"]["annotations"][key].as_str().filter(|v| !v.is_empty())
}
