//! Which labels and taints of a pool or a server a Node can carry. Pure.
//!
//! A kubelet refuses others, or has them already: better said where they are given than found in the journal of a machine.

use k8s_openapi::api::core::v1::Taint;

/// Labels that a Node gives itself.
const OWN: [&str; 5] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
];
/// Of the domains of Kubernetes, a kubelet takes these keys, and everything below two domains.
const TAKEN: [&str; 6] = [
    "beta.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const TAKEN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Why a label cannot be put on a Node.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    check_key(key).map_err(|why| format!("label {key:?}: {why}"))?;
    if !value.is_empty() && !is_name(value) {
        return Err(format!(
            "label {key}: the value {value:?} is not one: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        ));
    }
    if OWN.contains(&key) {
        return Err(format!("label {key} is the Node's own and cannot be set"));
    }
    let domain = key.split_once('/').map(|(domain, _)| domain).unwrap_or_default();
    let below = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    if (below("kubernetes.io") || below("k8s.io"))
        && !TAKEN.contains(&key)
        && !TAKEN_DOMAINS.iter().any(|parent| below(parent))
    {
        return Err(format!(
            "label {key}: a kubelet takes no such label of {domain}; use a domain of your own"
        ));
    }
    Ok(())
}

/// Why a taint cannot be put on a Node.
pub fn check_taint(taint: &Taint) -> Result<(), String> {
    let key = &taint.key;
    check_key(key).map_err(|why| format!("taint {key:?}: {why}"))?;
    let value = taint.value.as_deref().unwrap_or_default();
    if !value.is_empty() && !is_name(value) {
        return Err(format!("taint {key}: {value:?} is not a value"));
    }
    if !EFFECTS.contains(&taint.effect.as_str()) {
        return Err(format!("taint {key}: effect {:?} must be one of {}", taint.effect, EFFECTS.join(", ")));
    }
    Ok(())
}

fn check_key(key: &str) -> Result<(), String> {
    let (domain, name) = key.split_once('/').unwrap_or(("", key));
    if !is_name(name) || (key.contains('/') && !is_domain(domain)) {
        return Err("a key is a name of at most 63 letters, digits, '-', '_' and '.', optionally after a domain and '/'".into());
    }
    Ok(())
}

/// Whether this is a name of DNS, as of a Node or in front of a key.
pub fn is_domain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| is_name(part) && !part.contains('_') && part == part.to_lowercase())
}

/// Whether this is what a label's value is, where there is one, and the end of its key.
pub fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_a_kubelet_takes() {
        for (key, value) in [
            ("tier", "gold"),
            ("example.com/tier", ""),
            ("topology.kubernetes.io/zone", "a"),
            ("node.kubernetes.io/instance-type", "m5.large"),
        ] {
            assert_eq!(check_label(key, value), Ok(()));
        }
        for (key, value, word) in [
            ("a b", "c", "a key is"),
            ("tier", "c d", "the value"),
            ("kubernetes.io/hostname", "c", "the Node's own"),
            ("node-role.kubernetes.io/worker", "true", "domain of your own"),
            ("Example.com/x", "y", "a key is"),
            ("/x", "y", "a key is"),
        ] {
            let why = check_label(key, value).unwrap_err();
            assert!(why.contains(word) && why.contains(key), "{why}");
        }
    }

    #[test]
    fn taints_have_one_of_three_effects() {
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.into(),
            value: Some(value.into()),
            effect: effect.into(),
            time_added: None,
        };
        assert_eq!(check_taint(&taint("k", "v", "NoExecute")), Ok(()));
        assert!(
            check_taint(&taint("k", "v", "Banana"))
                .unwrap_err()
                .contains("NoSchedule, PreferNoSchedule, NoExecute")
        );
        assert!(
            check_taint(&taint("k", "v w", "NoExecute")).is_err()
                && check_taint(&taint("", "v", "NoExecute")).is_err()
        );
    }
}
