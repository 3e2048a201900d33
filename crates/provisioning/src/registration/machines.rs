//! Machines by their own credentials, and what they say of their cluster.

use std::sync::Arc;

use drover_api::capi::v1beta2::Machine;
use drover_plan::keys;
use drover_runtime::ObjectKey;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::bootstrap::objects::plan_name;
use crate::keys::labels;
use crate::store::Store;

/// How the API names a ServiceAccount; its namespace and name follow.
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The Machine whose plan account the API calls `user`.
pub fn machine_of_user(store: &Store, user: &str) -> Option<Arc<Machine>> {
    let (namespace, name) = user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')?;
    let account = store.accounts.get(&ObjectKey::new(namespace, name))?;
    let is_plan = account.labels().get(labels::SERVICE_ACCOUNT_ROLE).is_some_and(|r| r == labels::ROLE_PLAN);
    if is_plan { machine_of_account(store, &account) } else { None }
}

/// The Machine that an account was made for, through its RKEBootstrap. Owners are known by their uid too: a name may
/// belong to another object by now.
pub fn machine_of_account(store: &Store, account: &ServiceAccount) -> Option<Arc<Machine>> {
    let namespace = account.namespace()?;
    let (name, uid) = owner(&account.metadata, "rke.cattle.io", "RKEBootstrap")?;
    let bootstrap = store.bootstraps.get(&ObjectKey::new(&namespace, name))?;
    if bootstrap.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let (name, uid) = owner(&bootstrap.metadata, "cluster.x-k8s.io", "Machine")?;
    let machine = store.machines.get(&ObjectKey::new(namespace, name))?;
    (machine.metadata.uid.as_deref() == Some(uid)).then_some(machine)
}

fn owner<'a>(meta: &'a ObjectMeta, group: &str, kind: &str) -> Option<(&'a str, &'a str)> {
    let owners = meta.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| {
        owner.kind == kind && owner.api_version.split_once('/').map_or("", |(group, _)| group) == group
    });
    owners.next().map(|owner| (owner.name.as_str(), owner.uid.as_str()))
}

/// The management Cluster (its id) that a Machine belongs to.
pub fn management_of(store: &Store, machine: &Machine) -> Option<String> {
    let key = ObjectKey::new(machine.namespace()?, &machine.spec.cluster_name);
    store.management_ids.id_of(&key)
}

/// Whether a Machine serves its cluster's API or its etcd. What its Machine object says counts, because the machine can
/// write its plan secret itself.
pub fn is_server(machine: &Machine) -> bool {
    has_role(machine, labels::CONTROL_PLANE_ROLE) || has_role(machine, labels::ETCD_ROLE)
}

fn has_role(machine: &Machine, role: &str) -> bool {
    machine.labels().get(role).is_some_and(|value| value == "true")
}

/// The authorities (PEM) that the control-plane machines of a management Cluster reported in their plan secrets.
pub fn reported_authorities(store: &Store, management: &str) -> Vec<Vec<u8>> {
    let of_machine = |machine: &Machine| {
        let bootstrap = machine.spec.bootstrap.config_ref.as_ref()?;
        let key = ObjectKey::new(machine.namespace()?, plan_name(&bootstrap.name));
        let secret = store.secrets.get(&key)?;
        Some(secret.data.as_ref()?.get(keys::CLUSTER_CA)?.0.clone())
    };
    let Some(key) = store.management_ids.key_of(management) else { return vec![] };
    let machines = store.machines.by_label(labels::capi::CLUSTER_NAME, &key.namespace, &key.name);
    let mut found: Vec<Vec<u8>> = machines
        .iter()
        .filter(|machine| has_role(machine, labels::CONTROL_PLANE_ROLE))
        .filter_map(|machine| of_machine(machine))
        .collect();
    found.sort();
    found.dedup();
    found
}
