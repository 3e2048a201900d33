//! The headers with which a host registers as a machine; they are untrusted.

use std::collections::BTreeMap;

use drover_provisioning::init::pools::nodemarks::{check_label, is_domain};
use drover_provisioning::machine::unmanaged::{self, Request, Target};
use drover_provisioning::registration::check;
use serde_json::Value;

/// Headers, one per line: accepted ones become objects with valid labels and exactly the requested roles.
pub fn registration_headers(data: &[u8]) {
    let mut request: Request = BTreeMap::new();
    for line in String::from_utf8_lossy(data).lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let Some(name) = name.to_ascii_lowercase().strip_prefix("x-cattle-").map(str::to_owned) else {
            continue;
        };
        request.entry(name).or_default().push(value.trim().to_owned());
    }
    let id = request.get("id").and_then(|ids| ids.first()).cloned().unwrap_or_default();
    if check::id_problem(&id).is_some() || check::problem(&request).is_some() {
        return;
    }
    let name = unmanaged::name_of("custom-", &id);
    assert!(is_domain(&name) && name.len() <= 63, "{name}");
    let asked = |role: &str| unmanaged::all(&request, role).iter().any(|value| value == "true");
    let target = Target { namespace: "default", cluster: "demo", name: &name, token: None };
    let objects = unmanaged::objects(&target, &request);
    for meta in [&objects.bootstrap.metadata, &objects.infrastructure.metadata, &objects.machine.metadata] {
        let labels = meta.labels.as_ref().expect("there are labels");
        for (key, value) in labels {
            let own = ["rke.cattle.io/", "cluster.x-k8s.io/", "cattle.io/"]
                .iter()
                .any(|domain| key.starts_with(domain));
            assert!(own || check_label(key, value).is_ok(), "{key}={value}");
        }
        for (role, header) in [
            ("rke.cattle.io/etcd-role", "role-etcd"),
            ("rke.cattle.io/control-plane-role", "role-control-plane"),
            ("rke.cattle.io/worker-role", "role-worker"),
            ("cluster.x-k8s.io/control-plane", "role-control-plane"),
        ] {
            assert_eq!(labels.contains_key(role), asked(header), "{role}");
        }
        for (key, note) in meta.annotations.iter().flatten() {
            if key.ends_with("labels") || key.ends_with("taints") {
                serde_json::from_str::<Value>(note).expect("lists are stored as JSON");
            }
        }
    }
}
