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

/// Driver flags of a machine's spec, sorted.
pub fn driver_flags(driver: &str, spec: &Map<String, Value>) -> Vec<String> {
    let mut flags = Vec::new();
    for (field, value) in spec {
        if field == "providerID" || field == "common" {
            continue;
        }
        let flag = format!("--{driver}-{}", kebab(field));
        match value {
            Value::String(text) if !text.is_empty() => flags.push(format!("{flag}={text}")),
            Value::Number(number) => flags.push(format!("{flag}={number}")),
            Value::Bool(true) => flags.push(flag),
            Value::Array(items) => {
                for item in items {
                    let text = item.as_str().map(str::to_owned).unwrap_or_else(|| item.to_string());
                    flags.push(format!("{flag}={text}"));
                }
            }
            _ => {}
        }
    }
    flags.sort();
    flags
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

    #[test]
    fn machine_drivers_check_1_flags_follow_the_upstream_rules() {
        let spec = json!({
            "ipv6AddressCount": 1, "region": "eu", "empty": "", "off": false, "on": true,
            "securityGroup": ["a", "b"], "providerID": "x", "common": {"labels": {}}, "nothing": null,
        });
        assert_eq!(
            driver_flags("amazonec2", spec.as_object().unwrap()),
            [
                "--amazonec2-ipv6-address-count=1",
                "--amazonec2-on",
                "--amazonec2-region=eu",
                "--amazonec2-security-group=a",
                "--amazonec2-security-group=b",
            ]
        );
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
