//! The objects of one machine: its plan secret with the one account that may touch it, and its bootstrap.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use drover_api::names::safe_concat_name;
use drover_api::rke::v1::RKEBootstrap;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};

use crate::keys::{annotations, labels};

/// Name of the plan secret and of all that belongs to it.
pub fn plan_name(bootstrap: &str) -> String {
    safe_concat_name(&[bootstrap, "machine", "plan"])
}

/// Name of the bootstrap secret and of its account.
pub fn bootstrap_name(bootstrap: &str) -> String {
    safe_concat_name(&[bootstrap, "machine", "bootstrap"])
}

/// Who a bootstrap belongs to.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    pub machine: String,
    /// CAPI Cluster.
    pub cluster: String,
}

/// Account, role and binding of the plan. The secret itself is made by [`plan_secret`], because agents and
/// planner write it too.
pub fn plan_access(bootstrap: &RKEBootstrap, owners: &Owners) -> Vec<Value> {
    let namespace = bootstrap.metadata.namespace.as_deref().unwrap_or_default();
    let own_name = bootstrap.metadata.name.as_deref().unwrap_or_default();
    let name = plan_name(own_name);
    let owner = owner_reference(bootstrap);
    let marks = json!({labels::BOOTSTRAP_NAME: own_name});
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "namespace": namespace,
                "name": name,
                "labels": {
                    labels::MACHINE_NAME: owners.machine,
                    labels::BOOTSTRAP_NAME: own_name,
                    labels::SERVICE_ACCOUNT_ROLE: labels::ROLE_PLAN,
                    labels::PLAN_SECRET_NAME: name,
                },
                "ownerReferences": [owner],
            },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"namespace": namespace, "name": name, "labels": marks, "ownerReferences": [owner]},
            "rules": [{
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": [name],
                "verbs": ["watch", "get", "update", "list"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"namespace": namespace, "name": name, "labels": marks, "ownerReferences": [owner]},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }),
    ]
}

/// The plan secret's type, labels and annotations: those of the bootstrap, so that roles, labels and taints
/// reach the planner. Applied without data: data belongs to planner and agent.
pub fn plan_secret(bootstrap: &RKEBootstrap, owners: &Owners) -> Value {
    let mut marks: Map<String, Value> =
        bootstrap.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), json!(value))).collect();
    for (key, value) in [
        (labels::MACHINE_NAME.to_owned(), owners.machine.as_str()),
        (labels::CLUSTER_NAME.to_owned(), owners.cluster.as_str()),
        (labels::BACKUP.to_owned(), "true"),
        (format!("{}group", labels::PLAN_CLUSTER_PREFIX), "cluster.x-k8s.io"),
        (format!("{}kind", labels::PLAN_CLUSTER_PREFIX), "Cluster"),
        (format!("{}name", labels::PLAN_CLUSTER_PREFIX), owners.cluster.as_str()),
        (format!("{}group", labels::PLAN_MACHINE_PREFIX), "cluster.x-k8s.io"),
        (format!("{}kind", labels::PLAN_MACHINE_PREFIX), "Machine"),
        (format!("{}name", labels::PLAN_MACHINE_PREFIX), owners.machine.as_str()),
    ] {
        marks.insert(key, json!(value));
    }
    let notes: Map<String, Value> =
        plan_annotations(bootstrap).map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": bootstrap.metadata.namespace,
            "name": plan_name(bootstrap.metadata.name.as_deref().unwrap_or_default()),
            "labels": marks,
            "annotations": notes,
            "ownerReferences": [owner_reference(bootstrap)],
        },
        "type": drover_api::secret_types::MACHINE_PLAN,
    })
}

/// The annotations of a bootstrap that its plan secret has too. kubectl's record of an apply is about the bootstrap itself.
pub fn plan_annotations(bootstrap: &RKEBootstrap) -> impl Iterator<Item = (&String, &String)> {
    let all = bootstrap.metadata.annotations.iter().flatten();
    all.filter(|(key, _)| !key.starts_with("kubectl.kubernetes.io/"))
}

/// The bootstrap account: it may do nothing, its token only says which machine speaks.
pub fn bootstrap_account(bootstrap: &RKEBootstrap, owners: &Owners) -> Value {
    let own_name = bootstrap.metadata.name.as_deref().unwrap_or_default();
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "namespace": bootstrap.metadata.namespace,
            "name": bootstrap_name(own_name),
            "labels": {
                labels::MACHINE_NAME: owners.machine,
                labels::BOOTSTRAP_NAME: own_name,
                labels::SERVICE_ACCOUNT_ROLE: labels::ROLE_BOOTSTRAP,
            },
            "ownerReferences": [owner_reference(bootstrap)],
        },
    })
}

/// Name of an account's token secret. It follows from the account, so that a crash cannot make a second one.
pub fn token_secret_name(account: &str, account_uid: &str) -> String {
    let suffix = &crate::digest::sha256_hex([account_uid])[..5];
    safe_concat_name(&[account, "token", suffix])
}

/// The token in a token secret, once it is there.
pub fn service_account_token(secret: &Secret) -> Option<String> {
    let token = secret.data.as_ref()?.get("token")?;
    String::from_utf8(token.0.clone()).ok().filter(|token| !token.is_empty())
}

/// Token secret of an account; the API server fills in the token.
pub fn token_secret(namespace: &str, account: &str, account_uid: &str, bootstrap: bool) -> Value {
    let mut notes = json!({"kubernetes.io/service-account.name": account});
    if bootstrap {
        notes[annotations::BOOTSTRAP_TOKEN] = json!("true");
    }
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": namespace,
            "name": token_secret_name(account, account_uid),
            "labels": {labels::SERVICE_ACCOUNT_NAME: account},
            "annotations": notes,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "ServiceAccount", "name": account, "uid": account_uid,
            }],
        },
        "type": "kubernetes.io/service-account-token",
    })
}

/// The secret with the script that a new server runs.
pub fn bootstrap_secret(bootstrap: &RKEBootstrap, owners: &Owners, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": bootstrap.metadata.namespace,
            "name": bootstrap_name(bootstrap.metadata.name.as_deref().unwrap_or_default()),
            "labels": {labels::capi::CLUSTER_NAME: owners.cluster},
            "ownerReferences": [owner_reference(bootstrap)],
        },
        "type": drover_api::secret_types::BOOTSTRAP,
        "data": {"value": BASE64_STANDARD.encode(script)},
    })
}

fn owner_reference(bootstrap: &RKEBootstrap) -> Value {
    json!({
        "apiVersion": drover_api::rke::v1::API_VERSION,
        "kind": "RKEBootstrap",
        "name": bootstrap.metadata.name,
        "uid": bootstrap.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bootstrap(name: &str) -> RKEBootstrap {
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "default", "name": name, "uid": "u1",
                "labels": {"rke.cattle.io/worker-role": "true"},
                "annotations": {"rke.cattle.io/labels": "{}"},
            },
            "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn provisioning_check_16_the_role_allows_only_its_secret() {
        let owners = Owners { machine: "m1".into(), cluster: "demo".into() };
        let objects = plan_access(&bootstrap("b1"), &owners);
        let role = &objects[1];
        assert_eq!(role["rules"].as_array().unwrap().len(), 1);
        assert_eq!(role["rules"][0]["resourceNames"], json!(["b1-machine-plan"]));
        assert_eq!(role["rules"][0]["resources"], json!(["secrets"]));
        let secret = plan_secret(&bootstrap("b1"), &owners);
        assert_eq!(secret["type"], "rke.cattle.io/machine-plan");
        assert_eq!(secret["metadata"]["labels"]["rke.cattle.io/worker-role"], "true");
        assert_eq!(secret["metadata"]["labels"]["plan.cattle.io/machine-name"], "m1");
        assert!(secret.get("data").is_none());
    }

    #[test]
    fn control_plane_check_37_long_names_are_cut_the_same_everywhere() {
        let long = "x".repeat(70);
        let owners = Owners::default();
        let name = plan_name(&long);
        assert!(name.len() == 63 && name.starts_with("xxx"));
        let objects = plan_access(&bootstrap(&long), &owners);
        assert_eq!(objects[0]["metadata"]["name"], json!(name));
        assert_eq!(objects[0]["metadata"]["labels"]["rke.cattle.io/plan-secret-name"], json!(name));
        assert_eq!(plan_secret(&bootstrap(&long), &owners)["metadata"]["name"], json!(name));
    }
}
