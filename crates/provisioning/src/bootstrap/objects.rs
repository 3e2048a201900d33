//! The objects of one machine: its plan secret with the one account that may touch it, and its bootstrap.

use std::collections::BTreeMap;

use drover_api::names::safe_concat_name;
use drover_api::rke::v1::RKEBootstrap;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use crate::keys::{annotations, labels};
use crate::owner::controller_reference;

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

/// What an agent may reach its plan secret with.
pub struct PlanAccess {
    pub account: ServiceAccount,
    pub role: Role,
    pub binding: RoleBinding,
}

/// Account, role and binding of the plan. The secret itself is made by [`plan_secret`], because agents and
/// planner write it too.
pub fn plan_access(bootstrap: &RKEBootstrap, owners: &Owners) -> PlanAccess {
    let own_name = bootstrap.metadata.name.as_deref().unwrap_or_default();
    let name = plan_name(own_name);
    // Caches find them by the label.
    let marked = || ObjectMeta {
        labels: Some(texts([(labels::BOOTSTRAP_NAME, own_name)])),
        ..owned(bootstrap, &name)
    };
    let mut account = owned(bootstrap, &name);
    account.labels = Some(texts([
        (labels::MACHINE_NAME, owners.machine.as_str()),
        (labels::BOOTSTRAP_NAME, own_name),
        (labels::SERVICE_ACCOUNT_ROLE, labels::ROLE_PLAN),
        (labels::PLAN_SECRET_NAME, &name),
    ]));
    let rule = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".into()]),
        resource_names: Some(vec![name.clone()]),
        verbs: ["watch", "get", "update", "list"].map(str::to_owned).into(),
        ..PolicyRule::default()
    };
    PlanAccess {
        account: ServiceAccount { metadata: account, ..ServiceAccount::default() },
        role: Role { metadata: marked(), rules: Some(vec![rule]) },
        binding: RoleBinding {
            metadata: marked(),
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".into()),
                kind: "Role".into(),
                name: name.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: name.clone(),
                namespace: Some(bootstrap.metadata.namespace.clone().unwrap_or_default()),
                ..Subject::default()
            }]),
        },
    }
}

fn owned(bootstrap: &RKEBootstrap, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: bootstrap.metadata.namespace.clone(),
        name: Some(name.to_owned()),
        owner_references: Some(vec![controller_reference(bootstrap)]),
        ..ObjectMeta::default()
    }
}

fn texts<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The plan secret's type, labels and annotations: those of the bootstrap, so that roles, labels and taints
/// reach the planner. Applied without data: data belongs to planner and agent.
pub fn plan_secret(bootstrap: &RKEBootstrap, owners: &Owners) -> Secret {
    let mut marks = bootstrap.metadata.labels.clone().unwrap_or_default();
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
        marks.insert(key, value.to_owned());
    }
    let notes = plan_annotations(bootstrap).map(|(key, value)| (key.clone(), value.clone())).collect();
    let name = plan_name(bootstrap.metadata.name.as_deref().unwrap_or_default());
    Secret {
        metadata: ObjectMeta { labels: Some(marks), annotations: Some(notes), ..owned(bootstrap, &name) },
        type_: Some(drover_api::secret_types::MACHINE_PLAN.to_owned()),
        ..Secret::default()
    }
}

/// The annotations of a bootstrap that its plan secret has too. kubectl's record of an apply is about the bootstrap itself.
pub fn plan_annotations(bootstrap: &RKEBootstrap) -> impl Iterator<Item = (&String, &String)> {
    let all = bootstrap.metadata.annotations.iter().flatten();
    all.filter(|(key, _)| !key.starts_with("kubectl.kubernetes.io/"))
}

/// The bootstrap account: it may do nothing, its token only says which machine speaks.
pub fn bootstrap_account(bootstrap: &RKEBootstrap, owners: &Owners) -> ServiceAccount {
    let own_name = bootstrap.metadata.name.as_deref().unwrap_or_default();
    let marks = texts([
        (labels::MACHINE_NAME, owners.machine.as_str()),
        (labels::BOOTSTRAP_NAME, own_name),
        (labels::SERVICE_ACCOUNT_ROLE, labels::ROLE_BOOTSTRAP),
    ]);
    ServiceAccount {
        metadata: ObjectMeta { labels: Some(marks), ..owned(bootstrap, &bootstrap_name(own_name)) },
        ..ServiceAccount::default()
    }
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
pub fn token_secret(namespace: &str, account: &str, account_uid: &str, bootstrap: bool) -> Secret {
    let mut notes = texts([("kubernetes.io/service-account.name", account)]);
    if bootstrap {
        notes.insert(annotations::BOOTSTRAP_TOKEN.to_owned(), "true".to_owned());
    }
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "ServiceAccount".into(),
        name: account.to_owned(),
        uid: account_uid.to_owned(),
        ..OwnerReference::default()
    };
    Secret {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(token_secret_name(account, account_uid)),
            labels: Some(texts([(labels::SERVICE_ACCOUNT_NAME, account)])),
            annotations: Some(notes),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    }
}

/// The secret with the script that a new server runs.
pub fn bootstrap_secret(bootstrap: &RKEBootstrap, owners: &Owners, script: &str) -> Secret {
    let name = bootstrap_name(bootstrap.metadata.name.as_deref().unwrap_or_default());
    let marks = texts([(labels::capi::CLUSTER_NAME, owners.cluster.as_str())]);
    Secret {
        metadata: ObjectMeta { labels: Some(marks), ..owned(bootstrap, &name) },
        type_: Some(drover_api::secret_types::BOOTSTRAP.to_owned()),
        data: Some([("value".to_owned(), ByteString(script.as_bytes().to_vec()))].into()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;
    use serde_json::json;

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
        let rules = plan_access(&bootstrap("b1"), &owners).role.rules.unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(json!(rules[0].resource_names), json!(["b1-machine-plan"]));
        assert_eq!(json!(rules[0].resources), json!(["secrets"]));
        let secret = plan_secret(&bootstrap("b1"), &owners);
        assert_eq!(secret.type_.as_deref(), Some("rke.cattle.io/machine-plan"));
        assert_eq!(secret.labels()["rke.cattle.io/worker-role"], "true");
        assert_eq!(secret.labels()["plan.cattle.io/machine-name"], "m1");
        assert_eq!(secret.data, None);
    }

    #[test]
    fn control_plane_check_37_long_names_are_cut_the_same_everywhere() {
        let long = "x".repeat(70);
        let owners = Owners::default();
        let name = plan_name(&long);
        assert!(name.len() == 63 && name.starts_with("xxx"));
        let account = plan_access(&bootstrap(&long), &owners).account;
        assert_eq!(account.name_any(), name);
        assert_eq!(account.labels()["rke.cattle.io/plan-secret-name"], name);
        assert_eq!(plan_secret(&bootstrap(&long), &owners).name_any(), name);
    }
}
