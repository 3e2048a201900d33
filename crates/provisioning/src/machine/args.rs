//! From an infra machine to the driver's command line and environment.

use std::collections::BTreeMap;

use drover_api::names::{safe_concat_name, safe_concat_name_max};
use serde_json::{Map, Value};

use crate::keys::annotations;

/// Longest hostname there is.
const LONGEST_HOSTNAME: usize = 63;

/// `LocalMachine` → `local`.
pub fn driver_of(kind: &str) -> String {
    kind.strip_suffix("Machine").unwrap_or(kind).to_lowercase()
}

/// The cluster of a machine, as drivers name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterNames {
    /// Name of the Cluster.
    pub name: String,
    /// Id of its management cluster; empty if it has none.
    pub id: String,
}

/// Driver flags of a machine's spec, sorted by name. The values of a repeated flag keep the order of the spec: some
/// drivers give their position a meaning.
pub fn driver_flags(driver: &str, spec: &Map<String, Value>, cluster: &ClusterNames) -> Vec<String> {
    let mut flags: Vec<(String, Option<String>)> = Vec::new();
    for (field, value) in spec {
        if field == "providerID" || field == "common" {
            continue;
        }
        let flag = format!("--{driver}-{}", kebab(field));
        match value {
            Value::Bool(true) => flags.push((flag, None)),
            Value::Array(items) => {
                flags.extend(items.iter().filter_map(scalar).map(|item| (flag.clone(), Some(item))));
            }
            other => {
                flags.extend(scalar(other).filter(|text| !text.is_empty()).map(|text| (flag, Some(text))))
            }
        }
    }
    match driver {
        "amazonec2" => amazonec2(spec, &cluster.id, &mut flags),
        "harvester" => flags.push(("--harvester-cluster-name".to_owned(), Some(cluster.name.clone()))),
        _ => {}
    }
    flags.sort_by(|(one, _), (other, _)| one.cmp(other));
    let text = |(flag, value)| match value {
        Some(value) => format!("{flag}={value}"),
        None => flag,
    };
    flags.into_iter().map(text).collect()
}

/// Adds the tag by which the cluster's cloud controller finds its instances, and protects the user's security groups.
fn amazonec2(spec: &Map<String, Value>, cluster: &str, flags: &mut Vec<(String, Option<String>)>) {
    let tags = spec.get("tags").and_then(Value::as_str).unwrap_or_default();
    if !cluster.is_empty() && !tags.contains("kubernetes.io/cluster/") {
        flags.retain(|(flag, _)| flag != "--amazonec2-tags");
        let comma = if tags.is_empty() { "" } else { "," };
        let tags = format!("{tags}{comma}kubernetes.io/cluster/{cluster},owned");
        flags.push(("--amazonec2-tags".to_owned(), Some(tags)));
    }
    let groups = spec.get("securityGroup").and_then(Value::as_array);
    let foreign =
        groups.is_some_and(|groups| groups.iter().any(|group| group.as_str() != Some("rancher-nodes")));
    if foreign && spec.get("securityGroupReadonly").is_none_or(Value::is_null) {
        flags.push(("--amazonec2-security-group-readonly".to_owned(), None));
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// `someField` → `some-field`; digits belong to the word before.
pub fn kebab(field: &str) -> String {
    split_words(field, '-').to_lowercase()
}

fn split_words(text: &str, separator: char) -> String {
    let mut out = String::new();
    let mut before: Option<char> = None;
    for letter in text.chars() {
        let boundary = before.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if boundary && letter.is_ascii_uppercase() {
            out.push(separator);
        }
        out.push(letter);
        before = Some(letter);
    }
    out
}

/// Environment of the driver: proxies, and the credential's keys under the driver's prefix.
pub fn environment(
    driver: &str,
    proxies: &[(String, String)],
    credential: &BTreeMap<String, Vec<u8>>,
) -> BTreeMap<String, Vec<u8>> {
    let mut env: BTreeMap<String, Vec<u8>> =
        proxies.iter().map(|(key, value)| (key.clone(), value.clone().into_bytes())).collect();
    let prefix = match driver {
        "amazonec2" => "AWS".to_owned(),
        "openstack" | "rackspace" => "OS".to_owned(),
        "vmwarevsphere" => "VSPHERE".to_owned(),
        "vmwarefusion" => "FUSION".to_owned(),
        "vmwarevcloudair" => "VCLOUDAIR".to_owned(),
        other => other.to_uppercase(),
    };
    for (key, value) in credential {
        let field = key.split_once('-').map_or(key.as_str(), |(_, field)| field);
        env.insert(format!("{prefix}_{}", split_words(field, '_').to_uppercase()), value.clone());
    }
    env
}

/// Name of the server: no dots, at most 63 characters.
pub fn instance_name(machine: &str) -> String {
    safe_concat_name(&[&machine.replace('.', "-")])
}

/// Hostname, cut to the pool's limit if it has a sensible one.
pub fn hostname(machine: &str, limit: Option<&str>) -> String {
    let limit = hostname_limit(limit.unwrap_or_default()).unwrap_or(LONGEST_HOSTNAME);
    safe_concat_name_max(limit, &[&machine.replace('.', "-")])
}

/// How long a hostname may be, by its annotation; or why that is ignored.
pub fn hostname_limit(annotation: &str) -> Result<usize, String> {
    if annotation.is_empty() {
        return Ok(LONGEST_HOSTNAME);
    }
    let limit = annotation.parse().ok().filter(|limit| (10..=LONGEST_HOSTNAME).contains(limit));
    limit.ok_or_else(|| {
        format!(
            "annotation {}={annotation:?} is ignored: it must be a number from 10 to {LONGEST_HOSTNAME}",
            annotations::HOSTNAME_LENGTH_LIMIT
        )
    })
}

/// What `create` and `rm` have in common.
pub struct Command<'a> {
    pub driver_url: &'a str,
    pub driver_hash: &'a str,
    pub namespace: &'a str,
    pub state_secret: &'a str,
}

impl Command<'_> {
    fn global(&self) -> Vec<String> {
        vec![
            format!("--driver-download-url={}", self.driver_url),
            format!("--driver-hash={}", self.driver_hash),
            format!("--secret-namespace={}", self.namespace),
            format!("--secret-name={}", self.state_secret),
        ]
    }

    /// Arguments that create a server.
    pub fn create(
        &self,
        driver: &str,
        hostname: Option<&str>,
        flags: Vec<String>,
        instance: &str,
    ) -> Vec<String> {
        let mut args = self.global();
        args.extend([
            "create".to_owned(),
            format!("--driver={driver}"),
            "--custom-install-script=/run/secrets/machine/value".to_owned(),
        ]);
        args.extend(hostname.map(|hostname| format!("--hostname-override={hostname}")));
        args.extend(flags);
        args.push(instance.to_owned());
        args
    }

    /// Arguments that remove a server; flags are read again from the environment.
    pub fn remove(&self, instance: &str) -> Vec<String> {
        let mut args = self.global();
        args.extend(["rm", "-y", "--update-config", instance].map(str::to_owned));
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn flags(driver: &str, spec: Value) -> Vec<String> {
        let cluster = ClusterNames { name: "demo".to_owned(), id: "c-1".to_owned() };
        driver_flags(driver, spec.as_object().unwrap(), &cluster)
    }

    #[test]
    fn machine_drivers_check_1_flags_follow_the_upstream_rules() {
        let spec = json!({
            "ipv6AddressCount": 1, "region": "eu", "empty": "", "off": false, "on": true, "tags": "a,b",
            "securityGroup": ["rancher-nodes"], "openPort": ["443/tcp", "80"], "providerID": "x",
            "common": {"labels": {}}, "nothing": null,
        });
        assert_eq!(
            flags("amazonec2", spec),
            [
                "--amazonec2-ipv6-address-count=1",
                "--amazonec2-on",
                "--amazonec2-open-port=443/tcp",
                "--amazonec2-open-port=80",
                "--amazonec2-region=eu",
                "--amazonec2-security-group=rancher-nodes",
                "--amazonec2-tags=a,b,kubernetes.io/cluster/c-1,owned",
            ]
        );
        let networks = json!({"network": ["b", "a"]});
        assert_eq!(
            flags("vmwarevsphere", networks),
            ["--vmwarevsphere-network=b", "--vmwarevsphere-network=a"]
        );
    }

    #[test]
    fn machine_drivers_check_17_cluster_tag_and_security_group() {
        let shared = json!({"tags": "kubernetes.io/cluster/x,shared", "securityGroup": ["mine"]});
        assert_eq!(
            flags("amazonec2", shared),
            [
                "--amazonec2-security-group=mine",
                "--amazonec2-security-group-readonly",
                "--amazonec2-tags=kubernetes.io/cluster/x,shared"
            ]
        );
        assert_eq!(flags("amazonec2", json!({})), ["--amazonec2-tags=kubernetes.io/cluster/c-1,owned"]);
        assert_eq!(flags("harvester", json!({})), ["--harvester-cluster-name=demo"]);
        assert!(flags("local", json!({})).is_empty());
        let unknown = driver_flags("amazonec2", &Map::new(), &ClusterNames::default());
        assert!(unknown.is_empty(), "no tag of a cluster without an id");
    }

    #[test]
    fn provisioning_check_24_credentials_become_environment() {
        let credential = [("amazonec2credentialConfig-accessKey".to_owned(), b"k".to_vec())].into();
        let env = environment("amazonec2", &[("NO_PROXY".into(), "x".into())], &credential);
        assert_eq!(env.keys().collect::<Vec<_>>(), ["AWS_ACCESS_KEY", "NO_PROXY"]);
    }

    #[test]
    fn machine_drivers_check_28_names_are_short_and_without_dots() {
        assert_eq!(instance_name("a.b"), "a-b");
        let long = format!("{}.x", "m".repeat(80));
        assert!(instance_name(&long).len() == 63 && !instance_name(&long).contains('.'));
        assert_eq!(hostname("demo-w-abc", Some("12")).len(), 10);
        assert_eq!(hostname(&"h".repeat(30), Some("20")).len(), 20);
        for senseless in ["9", "64", "x", "-1", "12.0"] {
            assert_eq!(hostname(&"h".repeat(30), Some(senseless)), "h".repeat(30), "{senseless} is ignored");
            let why = hostname_limit(senseless).unwrap_err();
            assert!(why.contains(&format!("{senseless:?} is ignored")), "{why}");
        }
        assert_eq!((hostname_limit(""), hostname_limit("10")), (Ok(63), Ok(10)));
    }
}
