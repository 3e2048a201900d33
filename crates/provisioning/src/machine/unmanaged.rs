//! Custom machines: a server that a person brought registers, and becomes Machine, RKEBootstrap and
//! CustomMachine.

use std::collections::BTreeMap;

use drover_api::capi::v1beta2::{ContractVersionedObjectReference, Machine};
use drover_api::rke::v1::{CustomMachine, RKEBootstrap};
use k8s_openapi::api::core::v1::Taint;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use crate::init::pools;
use crate::keys::{annotations, labels};
use crate::registration::roles::Roles;

/// Headers of a registration, names in lower case without `x-cattle-`.
pub type Request = BTreeMap<String, Vec<String>>;

/// The headers that make a machine.
pub const HEADERS: [&str; 9] = [
    "id",
    "role-etcd",
    "role-control-plane",
    "role-worker",
    "node-name",
    "address",
    "internal-address",
    "labels",
    "taints",
];

/// Name of a request and of the machine that comes of it.
pub fn name_of(prefix: &str, id: &str) -> String {
    format!("{prefix}{}", &crate::digest::sha256_hex([id])[..12])
}

/// The owner of what is generated.
pub struct Target<'a> {
    pub namespace: &'a str,
    /// CAPI Cluster.
    pub cluster: &'a str,
    /// `custom-<12 hex>`.
    pub name: &'a str,
    /// The ClusterRegistrationToken that the server registered with, if that is known.
    pub token: Option<&'a str>,
}

/// What a custom machine consists of.
pub struct Objects {
    pub bootstrap: RKEBootstrap,
    pub infrastructure: CustomMachine,
    pub machine: Machine,
}

/// The three objects of a custom machine.
pub fn objects(target: &Target<'_>, request: &Request) -> Objects {
    let marks = machine_labels(target, request);
    let mut notes = BTreeMap::new();
    let user_labels = user_labels(request);
    if !user_labels.is_empty() {
        notes.insert(annotations::LABELS.to_owned(), compact(&json!(user_labels)));
    }
    let taints: Vec<Taint> = all(request, "taints").iter().filter_map(|part| parse_taint(part)).collect();
    if !taints.is_empty() {
        notes.insert(annotations::TAINTS.to_owned(), compact(&json!(taints)));
    }
    let mut bootstrap_notes = notes.clone();
    let mut machine_notes = notes.clone();
    if let Some(token) = target.token {
        machine_notes.insert(annotations::REGISTRATION_TOKEN.to_owned(), token.to_owned());
    }
    for (header, key) in
        [("address", annotations::ADDRESS), ("internal-address", annotations::INTERNAL_ADDRESS)]
    {
        let value = all(request, header).join(",");
        if !value.is_empty() {
            bootstrap_notes.insert(key.to_owned(), value);
        }
    }
    let meta = |notes: BTreeMap<String, String>| ObjectMeta {
        namespace: Some(target.namespace.to_owned()),
        name: Some(target.name.to_owned()),
        labels: Some(marks.clone()),
        annotations: Some(notes),
        ..ObjectMeta::default()
    };
    let reference = |kind: &str| ContractVersionedObjectReference {
        api_group: "rke.cattle.io".into(),
        kind: kind.to_owned(),
        name: target.name.to_owned(),
    };
    let mut bootstrap = RKEBootstrap { metadata: meta(bootstrap_notes), ..RKEBootstrap::default() };
    bootstrap.spec.cluster_name = target.cluster.to_owned();
    let mut machine = Machine { metadata: meta(machine_notes), ..Machine::default() };
    machine.spec.cluster_name = target.cluster.to_owned();
    machine.spec.bootstrap.config_ref = Some(reference("RKEBootstrap"));
    machine.spec.infrastructure_ref = reference("CustomMachine");
    let infrastructure = CustomMachine { metadata: meta(notes), ..CustomMachine::default() };
    Objects { bootstrap, infrastructure, machine }
}

fn machine_labels(target: &Target<'_>, request: &Request) -> BTreeMap<String, String> {
    let mut marks = user_labels(request);
    let mut set = |key: &str, value: &str| {
        marks.insert(key.to_owned(), value.to_owned());
    };
    let roles = Roles::of_request(request);
    if roles.etcd {
        set(labels::ETCD_ROLE, "true");
    }
    if roles.control_plane {
        set(labels::CONTROL_PLANE_ROLE, "true");
        set(labels::capi::CONTROL_PLANE, "true");
    }
    if roles.worker {
        set(labels::WORKER_ROLE, "true");
    }
    set(labels::capi::CLUSTER_NAME, target.cluster);
    set(labels::CLUSTER_NAME, target.cluster);
    if let Some(id) = all(request, "id").first() {
        set(labels::MACHINE_ID, id);
    }
    if let Some(node) = all(request, "node-name").first().filter(|node| !node.is_empty()) {
        set(labels::NODE_NAME, node);
    }
    marks
}

/// Labels that say what a machine is: they come of its roles, its id and its name alone.
pub fn is_reserved(key: &str) -> bool {
    let of_a_pool = pools::is_reserved(key);
    // The printed command gives the operating system as a label; nobody else here knows it.
    let given = key == labels::OS;
    let own = [labels::MACHINE_ID, labels::MACHINE_UID, labels::NODE_NAME, labels::INIT_NODE].contains(&key);
    (of_a_pool && !given) || own
}

fn user_labels(request: &Request) -> BTreeMap<String, String> {
    let mut found = parse_labels(&all(request, "labels"));
    // Refused at registration; a request may be older than that rule.
    found.retain(|key, _| !is_reserved(key));
    found
}

/// The items of a header that is a list.
pub fn all(request: &Request, header: &str) -> Vec<String> {
    request
        .get(header)
        .into_iter()
        .flatten()
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .collect()
}

/// `key=value`, or `key` alone for an empty value.
pub fn parse_labels(parts: &[String]) -> BTreeMap<String, String> {
    let pairs = parts.iter().map(|part| part.split_once('=').unwrap_or((part, "")));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// `key=value:Effect` or `key:Effect`.
pub fn parse_taint(part: &str) -> Option<Taint> {
    let (head, effect) = part.rsplit_once(':')?;
    let (key, value) =
        head.split_once('=').map_or((head, None), |(key, value)| (key, Some(value.to_owned())));
    Some(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
}

fn compact(value: &Value) -> String {
    String::from_utf8_lossy(&crate::digest::go_json(value)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_20_roles_labels_and_taints_reach_the_machine() {
        let request: Request = [
            ("id", "abc"),
            ("role-etcd", "true"),
            ("role-worker", "true"),
            ("node-name", "n1"),
            ("labels", "cattle.io/os=linux,zone=a,rke.cattle.io/etcd-role=false"),
            ("taints", "k=v:NoSchedule,x:NoExecute"),
            ("address", "1.2.3.4"),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), vec![value.to_owned()]))
        .collect();
        let name = name_of("custom-", "abc");
        assert_eq!(name.len(), "custom-".len() + 12);
        let objects = objects(
            &Target { namespace: "default", cluster: "demo", name: &name, token: Some("mine") },
            &request,
        );
        let machine = json!(objects.machine);
        let marks = &machine["metadata"]["labels"];
        assert_eq!(marks[labels::ETCD_ROLE], "true", "a user's label does not override a role");
        assert_eq!(marks.get(labels::CONTROL_PLANE_ROLE), None);
        assert_eq!((&marks["zone"], &marks[labels::MACHINE_ID]), (&json!("a"), &json!("abc")));
        assert_eq!(
            machine["metadata"]["annotations"][annotations::TAINTS],
            r#"[{"effect":"NoSchedule","key":"k","value":"v"},{"effect":"NoExecute","key":"x"}]"#
        );
        assert_eq!(json!(objects.bootstrap)["metadata"]["annotations"][annotations::ADDRESS], "1.2.3.4");
        assert_eq!(machine["metadata"]["annotations"]["drover.io/registration-token"], "mine");
        assert_eq!(machine["spec"]["infrastructureRef"]["name"], json!(name));
    }

    #[test]
    fn labels_give_no_roles() {
        let given =
            "zone,rke.cattle.io/etcd-role=true,cluster.x-k8s.io/control-plane=true,cattle.io/os=linux";
        let request: Request = [("labels".to_owned(), vec![given.to_owned()])].into();
        let objects =
            objects(&Target { namespace: "default", cluster: "demo", name: "m", token: None }, &request);
        let meta = &json!(objects.machine)["metadata"];
        for role in [labels::ETCD_ROLE, labels::capi::CONTROL_PLANE] {
            assert_eq!(meta["labels"].get(role), None, "{role}");
        }
        assert_eq!(meta["annotations"][annotations::LABELS], r#"{"cattle.io/os":"linux","zone":""}"#);
    }
}
