//! A client from the Secret `<cluster>-kubeconfig` of Cluster API's contract.
//!
//! Users who may write Secrets in a namespace can write it, so it must not make the server run a program or read a
//! file.

use std::sync::Arc;
use std::time::Duration;

use drover_access_api::Why;
use drover_api::labels::capi::CLUSTER_NAME;
use drover_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};

/// The key in the Secret.
pub(super) const VALUE: &str = "value";
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Checks that a Secret contains a kubeconfig of `cluster` that is not Drover's own.
pub(super) fn find(secret: Option<Arc<Secret>>, key: &ObjectKey, cluster: &str) -> Result<Arc<Secret>, Why> {
    // It points to Drover's own proxy, also for a moment after its Cluster was deleted.
    let secret =
        secret.filter(|secret| !is_of_proxy(secret)).ok_or_else(|| Why::NoKubeconfig(key.clone()))?;
    if secret.labels().get(CLUSTER_NAME).is_none_or(|name| name != cluster) {
        let cluster = cluster.to_owned();
        return Err(Why::NoLabel { secret: key.clone(), label: CLUSTER_NAME, cluster });
    }
    Ok(secret)
}

fn is_of_proxy(secret: &Secret) -> bool {
    secret.owner_references().iter().any(|owner| owner.api_version.starts_with("provisioning.cattle.io/"))
}

/// The kubeconfig's bytes.
pub(super) fn value(secret: &Secret) -> &[u8] {
    secret.data.as_ref().and_then(|data| data.get(VALUE)).map_or(&[], |value| &value.0)
}

/// A client for the current context, or the problem with the kubeconfig.
pub(super) async fn client(bytes: &[u8]) -> Result<Client, String> {
    if bytes.is_empty() {
        return Err(format!("the key {VALUE:?} is missing or empty"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|error| error.to_string())?;
    if let Some(field) = forbidden(&kubeconfig) {
        return Err(format!("{field} is not supported: embed certificates and tokens in the kubeconfig"));
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| error.to_string())?;
    config.connect_timeout = Some(CONNECT_LIMIT);
    // Callers have their own limits and retries.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| error.to_string())
}

/// The first field that would run a program, read a file of this host or use another network path.
fn forbidden(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let users = kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let of_users = users.flat_map(|user| {
        [
            (user.exec.is_some(), "exec"),
            (user.auth_provider.is_some(), "auth-provider"),
            (user.token_file.is_some(), "tokenFile"),
            (user.client_certificate.is_some(), "client-certificate"),
            (user.client_key.is_some(), "client-key"),
        ]
    });
    let clusters = kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
    let of_clusters = clusters.flat_map(|cluster| {
        [
            (cluster.certificate_authority.is_some(), "certificate-authority"),
            (cluster.proxy_url.is_some(), "proxy-url"),
        ]
    });
    of_users.chain(of_clusters).find_map(|(set, field)| set.then_some(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn kubeconfig(cluster: Value, user: Value) -> String {
        let mut config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        let merge = |into: &mut Value, from: Value| {
            into.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
        };
        merge(&mut config["clusters"][0]["cluster"], cluster);
        merge(&mut config["users"][0]["user"], user);
        config.to_string()
    }

    #[tokio::test]
    async fn a_kubeconfig_runs_no_program_and_reads_no_file() {
        let token = kubeconfig(json!({}), json!({"token": "t"}));
        assert!(client(token.as_bytes()).await.is_ok());
        let path = "/etc/hostname";
        for (field, cluster, user) in [
            (
                "exec",
                json!({}),
                json!({"exec": {"command": "true", "apiVersion": "client.authentication.k8s.io/v1"}}),
            ),
            ("auth-provider", json!({}), json!({"auth-provider": {"name": "gcp", "config": {}}})),
            ("tokenFile", json!({}), json!({"tokenFile": path})),
            ("client-certificate", json!({}), json!({"client-certificate": path})),
            ("client-key", json!({}), json!({"client-key": path})),
            ("certificate-authority", json!({"certificate-authority": path}), json!({})),
            ("proxy-url", json!({"proxy-url": "http://192.0.2.2"}), json!({})),
        ] {
            let error = client(kubeconfig(cluster, user).as_bytes()).await.err().unwrap();
            assert!(error.starts_with(&format!("{field} is not supported")), "{field}: {error}");
        }
        for bad in [&b""[..], b"\xff", b"{", b"kind: Config\n"] {
            assert!(client(bad).await.is_err());
        }
    }

    #[test]
    fn only_a_labelled_secret_that_does_not_lead_to_the_proxy_is_used() {
        let key = ObjectKey::new("ns", "demo-kubeconfig");
        let secret = |labels: Value, owner: &str| -> Option<Arc<Secret>> {
            let owner = json!({"apiVersion": owner, "kind": "Cluster", "name": "demo", "uid": "1"});
            let metadata = json!({"name": "demo-kubeconfig", "labels": labels, "ownerReferences": [owner]});
            Some(Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap()))
        };
        let (own, capi) = (json!({CLUSTER_NAME: "demo"}), "cluster.x-k8s.io/v1beta2");
        assert!(find(secret(own.clone(), capi), &key, "demo").is_ok());
        assert_eq!(find(None, &key, "demo"), Err(Why::NoKubeconfig(key.clone())));
        let proxied = secret(own, "provisioning.cattle.io/v1");
        assert_eq!(find(proxied, &key, "demo"), Err(Why::NoKubeconfig(key.clone())));
        for labels in [json!({}), json!({CLUSTER_NAME: "other"})] {
            let why = find(secret(labels, capi), &key, "demo").unwrap_err();
            assert!(why.to_string().contains("cluster.x-k8s.io/cluster-name=demo"), "{why}");
        }
    }
}
