//! What is wrong with the values that a server brings along. Pure.
//!
//! They become labels and notes of its Machine and settings of its kubelet. Said here, a mistake is one line where it
//! was made; found later, it is a server that waits for ever and a line in the log of the manager.

use crate::init::pools::nodemarks::{check_label, check_taint, is_domain, is_name};
use crate::keys::labels;
use crate::machine::unmanaged::{Request, all, is_reserved, parse_labels, parse_taint};
use crate::registration::address;
use crate::registration::roles::Roles;

/// Labels of these domains, and of those below them, say what Drover, Rancher and Cluster API know of a machine.
const OWN_DOMAINS: [&str; 4] = ["drover.io", "cattle.io", "rancher.io", "x-k8s.io"];

const ROLES: [&str; 3] = ["role-etcd", "role-control-plane", "role-worker"];

/// Why an id cannot name a machine: it becomes the value of a label.
pub fn id_problem(id: &str) -> Option<String> {
    (!is_name(id)).then(|| {
        format!(
            "the machine id {id:?} (X-Cattle-Id) must be at most 63 letters, digits, '-', '_' and '.', with a letter or digit at \
             both ends: set another CATTLE_ID, or remove the agent's file cattle-id to have one made"
        )
    })
}

/// Everything that is wrong with the rest of a request, in one sentence. What is empty counts as not given.
pub fn problem(request: &Request) -> Option<String> {
    let mut found = role_problems(request);
    found.extend(name_problems(request));
    found.extend(address_problems(request));
    found.extend(label_problems(request));
    found.extend(taint_problems(request));
    (!found.is_empty()).then(|| found.join("; "))
}

fn role_problems(request: &Request) -> Vec<String> {
    let mut found = value_problems(request);
    if found.is_empty() && Roles::of_request(request).is_empty() {
        found.push("the machine has no role: add --worker, --etcd, --controlplane, or several of them, to the command".into());
    }
    found
}

fn value_problems(request: &Request) -> Vec<String> {
    let values = ROLES.into_iter().flat_map(|role| all(request, role).into_iter().map(move |v| (role, v)));
    values
        .filter(|(_, value)| value != "true" && value != "false")
        .map(|(role, value)| format!("{role} {value:?} must be true or false"))
        .collect()
}

/// A Node's name, which is also the value of a label of the Machine.
fn name_problems(request: &Request) -> Vec<String> {
    // Not split at commas, as lists are: what is in front of one would be a name that nobody gave.
    let names = request.get("node-name").into_iter().flatten().map(|name| name.trim());
    names
        .filter(|name| !name.is_empty() && (name.len() > 63 || !is_domain(name)))
        .map(|name| {
            format!(
                "node name {name:?} must be at most 63 lower-case letters, digits, '-' and '.', with a letter or digit at both ends \
                 and beside each '.'"
            )
        })
        .collect()
}

fn address_problems(request: &Request) -> Vec<String> {
    let headers = [
        ("address", "X-Cattle-Address", "--address"),
        ("internal-address", "X-Cattle-Internal-Address", "--internal-address"),
    ];
    let check = |(name, header, flag): (&str, &str, &str)| {
        let problems = all(request, name).into_iter().filter_map(|value| {
            let why = address::problem(&value)?;
            Some(format!(
                "address {value:?} ({header}) {why}: give an address at which other machines reach this one with {flag}"
            ))
        });
        problems.collect::<Vec<_>>()
    };
    headers.into_iter().flat_map(check).collect()
}

fn label_problems(request: &Request) -> Vec<String> {
    let check = |(key, value): (String, String)| {
        if is_reserved(&key) {
            return Some(format!(
                "label {key} is set by Drover and cannot be given; roles are given by --etcd, --controlplane and --worker"
            ));
        }
        if is_own_domain(&key) {
            return Some(format!(
                "label {key} is in a domain of Drover, Rancher or Cluster API and cannot be given: use a domain of your own"
            ));
        }
        check_label(&key, &value).err()
    };
    parse_labels(&all(request, "labels")).into_iter().filter_map(check).collect()
}

fn is_own_domain(key: &str) -> bool {
    // Every printed command gives the operating system as a label.
    if key == labels::OS {
        return false;
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain).to_lowercase();
    OWN_DOMAINS
        .iter()
        .any(|own| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

fn taint_problems(request: &Request) -> Vec<String> {
    let check = |part: &String| match parse_taint(part) {
        Some(taint) => check_taint(&taint).err(),
        None => Some(format!("taint {part:?} must be key=value:Effect or key:Effect")),
    };
    all(request, "taints").iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        let worker = [("role-worker", "true")];
        // What is given comes last, so that it counts.
        worker
            .iter()
            .chain(headers)
            .map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()]))
            .collect()
    }

    #[test]
    fn ids_are_values_of_labels() {
        let made = "0123456789abcdef".repeat(4);
        for id in [&made[..63], "x", "given-by-the-cloud", "i-0a1.b_c"] {
            assert_eq!(id_problem(id), None, "{id}");
        }
        for id in ["../../../etc", "a b", "-a", "a,b", made.as_str()] {
            let why = id_problem(id).unwrap();
            assert!(why.contains(id) && why.contains("CATTLE_ID"), "{why}");
        }
    }

    #[test]
    fn what_the_install_scripts_send_is_fine() {
        for headers in [
            &[][..],
            // Without a value, as some clients send what was not given.
            &[("role-etcd", ""), ("node-name", ""), ("labels", ""), ("taints", ""), ("address", "")],
            &[("role-etcd", "true"), ("role-control-plane", "false"), ("labels", "cattle.io/os=linux")],
            &[("node-name", "node-1.example.com"), ("labels", "a=b,c=,d, example.com/tier=gold,")],
            &[("labels", "notcattle.io/x=y,cattle.io.example.com/x=y"), ("address", "10.0.0.1, fd00::1")],
            &[("taints", "k=v:NoSchedule,x:NoExecute,example.com/y=:PreferNoSchedule")],
        ] {
            assert_eq!(problem(&request(headers)), None, "{headers:?}");
        }
    }

    #[test]
    fn each_problem_names_its_value() {
        let long = format!("a.{}", "b".repeat(62));
        for (header, value, words) in [
            ("role-worker", "yes", ["role-worker", "\"yes\""]),
            ("node-name", "BAD_Name/..", ["node name \"BAD_Name/..\"", "lower-case"]),
            ("node-name", "good,My_Node", ["\"good,My_Node\"", "lower-case"]),
            ("node-name", &long, [&long, "at most 63"]),
            ("labels", "foo=!!", ["label foo", "\"!!\""]),
            ("labels", "a b=c", ["label \"a b\"", "a key is"]),
            ("labels", "=c", ["label \"\"", "a key is"]),
            ("labels", "zone=zürich", ["label zone", "zürich"]),
            ("labels", "kubernetes.io/hostname=x", ["kubernetes.io/hostname", "Node's own"]),
            ("labels", "rke.cattle.io/etcd-role=true", ["rke.cattle.io/etcd-role", "--etcd"]),
            ("labels", "rke.cattle.io/node-name=x", ["rke.cattle.io/node-name", "set by Drover"]),
            ("labels", "cattle.io/anything=x", ["cattle.io/anything", "domain of"]),
            ("labels", "drover.io/x=y", ["drover.io/x", "domain of"]),
            ("labels", "a.b.Rancher.io/x=y", ["a.b.Rancher.io/x", "domain of"]),
            ("labels", "node.cluster.x-k8s.io/x=y", ["node.cluster.x-k8s.io/x", "domain of"]),
            ("address", "127.0.0.1", ["X-Cattle-Address", "\"127.0.0.1\""]),
            ("internal-address", "10.0.0.1,fe80::1", ["X-Cattle-Internal-Address", "\"fe80::1\""]),
            ("taints", "nonsense", ["taint \"nonsense\"", "key=value:Effect"]),
            ("taints", "a=b:Bogus", ["taint a", "\"Bogus\""]),
            ("taints", "a=b c:NoSchedule", ["taint a", "\"b c\""]),
        ] {
            let why = problem(&request(&[(header, value)])).unwrap_or_default();
            assert!(words.iter().all(|word| why.contains(word)), "{header} {value}: {why}");
        }
    }

    #[test]
    fn a_machine_without_roles_is_refused() {
        for role in ["", "false"] {
            let why = problem(&request(&[("role-worker", role), ("role-etcd", "false")])).unwrap();
            assert!(why.contains("no role") && why.contains("--worker"), "{why}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let why =
            problem(&request(&[("labels", "zone=bad/value,fine=yes"), ("node-name", "My_Node")])).unwrap();
        assert!(why.contains("My_Node") && why.contains("bad/value") && !why.contains("fine"), "{why}");
    }
}
