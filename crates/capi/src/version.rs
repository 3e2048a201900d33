//! Kubernetes versions, including the build part of K3s and RKE2.

use std::sync::OnceLock;

use regex::Regex;

/// A version, ordered as upgrades are.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version {
    /// Major.
    pub major: u64,
    /// Minor.
    pub minor: u64,
    /// Patch.
    pub patch: u64,
    /// A release is after its pre-releases.
    pub released: bool,
    /// Pre-release and build, compared as text.
    pub rest: String,
}

impl Version {
    /// Parses `v1.34.1+k3s1`; the `v` is optional.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers = numbers.split('.').map(str::parse);
        let (major, minor, patch) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        if numbers.next().is_some() {
            return None;
        }
        Some(Self { major, minor, patch, released: !rest.starts_with('-'), rest: rest.to_owned() })
    }
}

/// `vX.Y.Z` with optional pre-release and build (`util/version/version.go`, KubeSemver).
pub fn is_kubernetes_version(text: &str) -> bool {
    static PATTERN: OnceLock<Option<Regex>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        Regex::new(r"^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-0-9a-zA-Z_\.+]*)?$").ok()
    });
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_ordered() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("v1.34.1+k3s1") < version("v1.34.2+k3s1"));
        assert!(version("v1.34.0-rc.1") < version("v1.34.0"));
        assert!(version("1.9.0") < version("v1.10.0"));
        assert_eq!(Version::parse("1.2"), None);
        assert!(is_kubernetes_version("v1.34.1+k3s1") && is_kubernetes_version("v1.30.0-rc.1"));
        assert!(
            !is_kubernetes_version("1.2")
                && !is_kubernetes_version("v1.2")
                && !is_kubernetes_version("1.2.3")
        );
    }
}
