//! Which values of an environment can be logged although their name does not say so.
//!
//! A plan can contain a secret under any name (`LICENSE`, `TOK`), so a value is hidden unless it is of a common kind
//! that secrets do not look like.

use std::net::{IpAddr, SocketAddr};

use super::{
    patterns::passwords,
    secret_names::{is_path, is_secret_name, is_switch},
};

/// Names whose values are not secret.
const HARMLESS: &[&str] = &[
    "PATH",
    "HOME",
    "PWD",
    "USER",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "HOSTNAME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
];
const HARMLESS_STARTS: &[&str] = &["LC_", "CATTLE_AGENT_"];
const HARMLESS_ENDS: &[&str] =
    &["_DIR", "_URL", "_VERSION", "_LOGLEVEL", "_STAMP", "_NAME", "_NAMESPACE", "_MODE", "_TYPE"];

/// Longer ones are not versions, or not the last part of a host name.
const LONGEST_VERSION: usize = 32;
const LONGEST_DOMAIN: usize = 12;

/// Whether the value is harmless under this name. Secrets in the value are still found.
pub(super) fn is_harmless(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    // The query of a URL can be a credential, and several lines are a document.
    !value.contains(['?', '\n'])
        && !is_secret_name(&name)
        && (HARMLESS.contains(&name.as_str())
            || HARMLESS_STARTS.iter().any(|start| name.starts_with(start))
            || HARMLESS_ENDS.iter().any(|end| name.ends_with(end)))
}

/// Whether the value is ordinary under any name.
pub(super) fn is_ordinary(value: &str) -> bool {
    is_switch(value)
        || is_number(value)
        || is_path(value)
        || is_version(value)
        || is_url(value)
        || value.split(',').all(|part| is_host(part.trim()))
}

fn is_number(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit() || b"+-._:".contains(&byte))
}

/// `v1.34.1+k3s1`.
fn is_version(value: &str) -> bool {
    let value = value.strip_prefix('v').unwrap_or(value);
    let (numbers, rest) = value.split_at(value.find(['+', '-']).unwrap_or(value.len()));
    let numbers: Vec<&str> = numbers.split('.').collect();
    value.len() <= LONGEST_VERSION
        && (2..=4).contains(&numbers.len())
        && numbers.iter().all(|part| (1..=4).contains(&part.len()) && is_number(part))
        && rest
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte))
}

/// With a host and an optional path, but without a query, and without a user unless the password is found separately.
fn is_url(value: &str) -> bool {
    value.split_once("://").is_some_and(|(scheme, rest)| {
        let host = rest.split('/').next().unwrap_or_default();
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && !host.is_empty()
            && (!rest.contains('@') || passwords(value).next().is_some())
            && !rest.contains(|c: char| c.is_whitespace() || "?#\"'<>`\\=;".contains(c))
    })
}

/// An address, a network, or a name with dots; a name without dots could be anything.
fn is_host(value: &str) -> bool {
    let address = value.split_once('/').map_or(value, |(address, _)| address);
    if address.parse::<IpAddr>().is_ok() {
        return value.len() - address.len() <= "/128".len();
    }
    if value.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let name = match value.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => value,
    };
    let labels: Vec<&str> = name.trim_start_matches("*.").trim_start_matches('.').split('.').collect();
    let fits = |label: &&str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let is_domain =
        |label: &&str| label.len() <= LONGEST_DOMAIN && label.bytes().all(|byte| byte.is_ascii_lowercase());
    name == "localhost"
        || (labels.len() >= 2 && labels.iter().all(fits) && labels.last().is_some_and(is_domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_values_are_ordinary() {
        for value in [
            "12345678",
            "1700000000.5",
            "true",
            "disabled",
            "/var/lib/rancher/k3s",
            "/usr/bin:/usr/local/bin",
            "v1.34.1+k3s1",
            "1.34.1-rc1+rke2r1",
            "https://10.0.0.1:6443",
            "https://m.example.com/v3/x",
            "10.42.0.0/16",
            "10.0.0.1:9345",
            "fd00::1",
            "[fd00::1]:6443",
            "node-1.example.com",
            "registry.example.com:5000",
            "localhost,127.0.0.1,10.0.0.0/8,.svc.cluster.local",
        ] {
            assert!(is_ordinary(value), "{value}");
        }
    }

    #[test]
    fn values_that_can_be_secrets_are_not_ordinary() {
        for value in [
            "SECRETenv1",
            "correct horse battery",
            "deadbeef00",
            "abcdef.0123456789abcdef",
            "a.correcthorsebattery",
            "1.SECRETSECRET",
            "1.2-SECRET",
            "12345678a",
            "https://some-user@h/x",
            "https://h/x?sig=abc",
            "/ab+cd/ef=",
            "10.0.0.1/secretsecret",
            "$ecretpass1",
            "://secretsecret",
            "secret=value",
        ] {
            assert!(!is_ordinary(value), "{value}");
        }
        assert!(is_harmless("INSTALL_K3S_VERSION", "v1") && is_harmless("no_proxy", "cluster.local,svc"));
        assert!(!is_harmless("CATTLE_AGENT_TOKEN", "x") && !is_harmless("X_URL", "https://h/?x"));
        assert!(!is_harmless("X_NAME", "a\nb") && !is_harmless("LICENSE", "x"));
    }
}
