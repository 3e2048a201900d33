//! Bootstrap Secrets in caches: a digest replaces the script, which no controller reads and which is larger than any
//! other object of a machine. Pure.

use drover_api::secret_types::BOOTSTRAP;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::digest::sha256_hex;

/// Key of the script.
const SCRIPT: &str = "value";

/// Replaces the script of a bootstrap Secret by its digest. Other Secrets stay as they are.
pub fn abridge(secret: &mut Secret) {
    if secret.type_.as_deref() == Some(BOOTSTRAP)
        && let Some(script) = secret.data.as_mut().and_then(|data| data.get_mut(SCRIPT))
    {
        *script = digest(&script.0);
    }
}

/// The Secret as the API has it, if it has the script of `desired`. If not, the digest stays and differs from `desired`.
pub fn restored(mut live: Secret, desired: &Secret) -> Secret {
    let script = desired.data.as_ref().and_then(|data| data.get(SCRIPT));
    if let (Some(held), Some(script)) = (live.data.as_mut().and_then(|data| data.get_mut(SCRIPT)), script)
        && *held == digest(&script.0)
    {
        *held = script.clone();
    }
    live
}

fn digest(script: &[u8]) -> ByteString {
    ByteString(sha256_hex([script]).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(type_: &str, script: &str) -> Secret {
        let data = [(SCRIPT.to_owned(), ByteString(script.as_bytes().to_vec()))];
        Secret { type_: Some(type_.to_owned()), data: Some(data.into()), ..Secret::default() }
    }

    #[test]
    fn only_bootstrap_scripts_are_abridged_and_only_the_same_script_is_restored() {
        let whole = secret(BOOTSTRAP, "#!/bin/sh");
        let mut held = whole.clone();
        abridge(&mut held);
        assert_ne!(held, whole);
        assert_eq!(restored(held.clone(), &whole), whole);
        let other = secret(BOOTSTRAP, "#!/bin/bash");
        assert_eq!(restored(held.clone(), &other), held);
        let mut kubeconfig = secret("cluster.x-k8s.io/secret", "apiVersion: v1");
        abridge(&mut kubeconfig);
        assert_eq!(kubeconfig, secret("cluster.x-k8s.io/secret", "apiVersion: v1"));
        abridge(&mut Secret::default());
    }
}
