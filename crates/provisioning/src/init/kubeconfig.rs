//! The cluster's own kubeconfig, which goes through the server.

use drover_api::provisioning::v1::Cluster;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;

use super::names::kubeconfig_user;
use crate::keys::labels;
use crate::owner::controller_reference;
use crate::settings::Settings;
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Name of the secret.
pub fn secret_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// `<user>:<key>`, made of a fresh random key.
pub fn new_token(namespace: &str, cluster: &str, key: &str) -> String {
    format!("{}:{key}", kubeconfig_user(namespace, cluster))
}

/// The token in a secret, if it is one of this cluster's own user.
pub fn own_token(secret: &Secret, namespace: &str, cluster: &str) -> Option<String> {
    let token = secret.data.as_ref()?.get("token")?;
    let token = String::from_utf8_lossy(&token.0).into_owned();
    is_own_token(namespace, cluster, &token).then_some(token)
}

/// A token of this cluster's own user.
fn is_own_token(namespace: &str, cluster: &str, token: &str) -> bool {
    token
        .split_once(':')
        .is_some_and(|(user, key)| user == kubeconfig_user(namespace, cluster) && !key.is_empty())
}

/// The kubeconfig text.
pub fn render(settings: &Settings, management_name: &str, token: &str) -> String {
    let base = match settings.internal_server_url.as_str() {
        "" => &settings.server_url,
        internal => internal,
    };
    let mut cluster = json!({"server": format!("{base}/k8s/clusters/{management_name}")});
    let authority = settings.internal_authority().trim();
    if !authority.is_empty() {
        let pem = format!("{authority}\n");
        cluster["certificate-authority-data"] = json!(BASE64_STANDARD.encode(pem));
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "default",
    });
    serde_saphyr::to_string(&config).unwrap_or_default()
}

/// The secret that holds it.
pub fn secret(cluster: &Cluster, value: &str, token: &str) -> Secret {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let owner = OwnerReference { controller: Some(false), ..controller_reference(cluster) };
    let data = [("value", value), ("token", token)];
    Secret {
        metadata: ObjectMeta {
            namespace: cluster.metadata.namespace.clone(),
            name: Some(secret_name(name)),
            labels: Some([(labels::capi::CLUSTER_NAME.to_owned(), name.to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.as_bytes().to_vec()))).into()),
        ..Secret::default()
    }
}

/// Whether a secret has everything that the other one has.
pub fn holds(live: &Secret, desired: &Secret) -> bool {
    let owners = |secret: &Secret| secret.metadata.owner_references.clone().unwrap_or_default();
    let label = |secret: &Secret| secret.labels().get(labels::capi::CLUSTER_NAME).cloned();
    let data = |secret: &Secret, key: &str| secret.data.as_ref().and_then(|data| data.get(key).cloned());
    ["value", "token"].iter().all(|key| data(live, key) == data(desired, key))
        && label(live) == label(desired)
        && owners(desired).iter().all(|owner| owners(live).iter().any(|there| there.uid == owner.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn people_get_yaml_and_every_reader_the_same_values() {
        let settings = Settings {
            server_url: "https://[::1]:8443".into(),
            cacerts: format!("-----BEGIN CERTIFICATE-----\n{}\n", "QUJD".repeat(300)),
            ..Settings::default()
        };
        let text = render(&settings, "c-m-1", "kubeconfig-u: #1:key");
        assert!(text.contains("apiVersion: v1\n") && !text.contains('{'), "{text}");
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        let cluster = &read["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://[::1]:8443/k8s/clusters/c-m-1");
        assert_eq!(cluster["certificate-authority-data"], BASE64_STANDARD.encode(&settings.cacerts));
        assert_eq!(read["users"][0]["user"]["token"], "kubeconfig-u: #1:key");
        assert_eq!((&read["kind"], &read["current-context"]), (&json!("Config"), &json!("default")));
    }
}
