//! What is wrong with a Cluster apart from its pools, each problem naming the field and what to do. Pure.

pub mod never;
pub mod schemas;

use drover_api::provisioning::v1::Cluster;
use drover_api::rke::v1::{DataDirectories, EnvVar};

use super::pools::problems::is_dns_label;

/// Names of management clusters of old, `c-` and five characters.
const MANAGEMENT_NAME: usize = 5;
/// Is made of `dataDirectories.systemAgent`.
const AGENT_VAR_DIR: &str = "CATTLE_AGENT_VAR_DIR";

/// All of them. `live` is where the machines of a cluster that exists keep their things.
pub fn problems(cluster: &Cluster, live: Option<&DataDirectories>) -> Vec<String> {
    let mut found = Vec::new();
    if live.is_none() {
        found.extend(name_problem(cluster));
    }
    found.extend(cluster.spec.agent_env_vars.iter().enumerate().filter_map(variable_problem));
    let endpoint = cluster.spec.local_cluster_auth_endpoint.as_ref();
    if endpoint.is_some_and(|endpoint| !endpoint.ca_certs.is_empty() && endpoint.fqdn.is_empty()) {
        found.push("spec.localClusterAuthEndpoint: caCerts belong to an fqdn: set that too".to_owned());
    }
    let config = cluster.spec.rke_config.as_ref();
    let wanted = config.and_then(|config| config.config.data_directories.clone()).unwrap_or_default();
    match live {
        Some(live) if *live != wanted => found.push(format!(
            "spec.rkeConfig.dataDirectories cannot be changed, because machines would start with empty directories: set it \
             back to {}",
            serde_json::to_string(live).unwrap_or_default()
        )),
        _ => found.extend(directory_problems(&wanted)),
    }
    found
}

/// A cluster's name becomes part of other names and the value of labels.
pub(super) fn name_problem(cluster: &Cluster) -> Option<String> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    if name.len() > 63 {
        return Some(format!(
            "metadata.name has {} characters, but a cluster's name has at most 63: recreate it with a shorter name",
            name.len()
        ));
    }
    let why = if name.len() < 2 || !is_dns_label(name) {
        "must have 2 to 63 lower-case letters, digits and '-', and begin and end with a letter or digit"
    } else if name == "local" && cluster.metadata.namespace.as_deref() != Some("fleet-local") {
        "is the name of the management plane's own cluster"
    } else if name.strip_prefix("c-").is_some_and(|rest| rest.len() == MANAGEMENT_NAME && !rest.contains('-'))
    {
        "looks like the id of a management cluster"
    } else {
        return None;
    };
    Some(format!("metadata.name {name:?} {why}: recreate the cluster with another name"))
}

fn variable_problem((index, variable): (usize, &EnvVar)) -> Option<String> {
    let path = format!("spec.agentEnvVars[{index}] ({})", variable.name);
    match variable.name.as_str() {
        AGENT_VAR_DIR => Some(format!("{path}: set spec.rkeConfig.dataDirectories.systemAgent instead")),
        "NO_PROXY" | "no_proxy" if variable.value.contains(char::is_whitespace) => {
            Some(format!("{path}: hosts and networks are separated by commas alone, without spaces"))
        }
        _ => None,
    }
}

fn directory_problems(directories: &DataDirectories) -> Vec<String> {
    let all = [
        ("systemAgent", &directories.system_agent),
        ("provisioning", &directories.provisioning),
        ("k8sDistro", &directories.k8s_distro),
    ];
    let given: Vec<_> = all.into_iter().filter(|(_, path)| !path.is_empty()).collect();
    let mut found = Vec::new();
    for (index, (name, path)) in given.iter().enumerate() {
        let mut refuse =
            |why: String| found.push(format!("spec.rkeConfig.dataDirectories.{name} {path:?} {why}"));
        let parts = || path.split('/').skip(1);
        if !path.starts_with('/') || parts().any(|part| matches!(part, "." | "..")) {
            refuse("must be an absolute path without . and ..".to_owned());
        } else if path.contains(['$', '`']) || path.contains(char::is_whitespace) {
            refuse("must have no white space, $ or backtick".to_owned());
        } else if parts().all(str::is_empty) {
            refuse("is the root of the file system".to_owned());
        }
        for (other, place) in &given[..index] {
            if is_within(path, place) || is_within(place, path) {
                refuse(format!("and {other} {place:?} must not lie in each other"));
            }
        }
    }
    found
}

/// Whether a path is another one, or below it.
fn is_within(path: &str, other: &str) -> bool {
    let parts =
        |text: &str| text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    parts(path).starts_with(&parts(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cluster(name: &str, spec: Value) -> Cluster {
        serde_json::from_value(json!({"metadata": {"namespace": "team", "name": name}, "spec": spec}))
            .unwrap()
    }

    fn reported(spec: Value) -> String {
        problems(&cluster("demo", spec), None).join("; ")
    }

    #[test]
    fn names_that_others_have_or_nothing_can_be_named_after_are_refused_for_new_clusters() {
        for (name, part) in [
            ("x", "2 to 63"),
            ("a.b.c", "2 to 63"),
            ("local", "own cluster"),
            ("c-abcde", "id of a management cluster"),
            (&"a".repeat(64)[..], "has 64 characters"),
        ] {
            let said = problems(&cluster(name, json!({})), None).join("; ");
            assert!(said.starts_with("metadata.name") && said.contains(part), "{name}: {said}");
            let live = DataDirectories::default();
            assert!(problems(&cluster(name, json!({})), Some(&live)).is_empty(), "{name} is there already");
        }
        for name in ["demo", "c-abcdef", "c-a-cde", "01"] {
            assert!(problems(&cluster(name, json!({})), None).is_empty(), "{name}");
        }
    }

    #[test]
    fn variables_and_endpoints_that_cannot_be_meant_are_refused() {
        let said = reported(json!({"agentEnvVars": [
            {"name": "A", "value": "b c"}, {"name": "NO_PROXY", "value": "10.0.0.0/8, .local"},
            {"name": "CATTLE_AGENT_VAR_DIR", "value": "/x"},
        ], "localClusterAuthEndpoint": {"enabled": true, "caCerts": "x"}}));
        for part in ["agentEnvVars[1] (NO_PROXY)", "agentEnvVars[2] (CATTLE_AGENT_VAR_DIR)", "set that too"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(said.split("; ").count(), 3, "{said}");
    }

    #[test]
    fn data_directories_are_absolute_apart_and_stay() {
        let with = |directories: Value| json!({"rkeConfig": {"dataDirectories": directories}});
        for (directories, part) in [
            (json!({"k8sDistro": "relative/../x"}), "k8sDistro \"relative/../x\" must be an absolute path"),
            (json!({"k8sDistro": "/a/../etc"}), "must be an absolute path"),
            (json!({"provisioning": "/a b"}), "white space"),
            (json!({"systemAgent": "/$HOME"}), "white space, $ or backtick"),
            (json!({"k8sDistro": "//"}), "root of the file system"),
            (
                json!({"systemAgent": "/a", "provisioning": "/a/b"}),
                "and systemAgent \"/a\" must not lie in each other",
            ),
            (json!({"systemAgent": "/a/b", "k8sDistro": "/a/b/"}), "must not lie in each other"),
        ] {
            let said = reported(with(directories));
            assert!(said.contains(part), "{said}");
        }
        let fine = with(json!({"systemAgent": "/a/b", "provisioning": "/a/bc", "k8sDistro": "/data"}));
        assert_eq!(reported(fine.clone()), "");
        let live = DataDirectories { k8s_distro: "/old".into(), ..DataDirectories::default() };
        for spec in [fine, json!({"rkeConfig": {}})] {
            let said = problems(&cluster("demo", spec), Some(&live)).join("; ");
            assert!(said.contains("cannot be changed") && said.contains(r#"{"k8sDistro":"/old"}"#), "{said}");
        }
        assert!(problems(&cluster("demo", with(json!({"k8sDistro": "/old"}))), Some(&live)).is_empty());
    }
}
