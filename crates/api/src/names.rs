//! Names derived from other names, cut to length without losing uniqueness.
//!
//! Byte-exact with `name.SafeConcatName` of rancher/wrangler and `SafeConcatName` of rancher/rancher
//! `pkg/capr/common.go`: objects of a cluster made by Rancher are found again under these names.

use sha2::{Digest, Sha256};

/// `spec.managedBy` of the Jobs that Drover's own runner runs: every other Job controller leaves them alone.
pub const JOB_RUNNER: &str = "drover.io/job-runner";

/// The characters of random names: no vowels and no similar characters (`k8s.io/apimachinery/pkg/util/rand`, rancher
/// `wrangler/pkg/randomtoken`).
pub const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Name (id) of the management Cluster of a provisioning Cluster: `c-m-` and eight characters of the Cluster's UID, so
/// that a crash between creating it and noting its name cannot create a second one.
pub fn management_cluster_name(uid: &str) -> String {
    format!("c-m-{}", from_bytes(&Sha256::digest(uid.as_bytes()), 8))
}

/// `length` characters of [`ALPHABET`] out of random bytes; a byte that would favour some characters is replaced by
/// further hashing.
pub fn from_bytes(bytes: &[u8], length: usize) -> String {
    let fair = u8::try_from(256 - 256 % ALPHABET.len()).unwrap_or(u8::MAX);
    let mut out = String::with_capacity(length);
    let mut block = Sha256::digest(bytes);
    while out.len() < length {
        for byte in block.iter().filter(|byte| **byte < fair).take(length - out.len()) {
            out.push(ALPHABET[usize::from(*byte) % ALPHABET.len()] as char);
        }
        block = Sha256::digest(block);
    }
    out
}

/// Joins parts with `-`; a result of 64 bytes or more is cut and ends in a hash of the whole.
pub fn safe_concat_name(parts: &[&str]) -> String {
    safe_concat_name_max(63, parts)
}

/// Like [`safe_concat_name`] with the length given by the caller (hostnames, Helm release names).
///
/// A limit of five or less leaves no room for a hash, so the name is only cut.
pub fn safe_concat_name_max(max: usize, parts: &[&str]) -> String {
    let full = parts.join("-");
    if full.len() <= max {
        return full;
    }
    if max <= 5 {
        return head(&full, max);
    }
    let digest = hex::encode(Sha256::digest(full.as_bytes()));
    let last = full.as_bytes()[max.saturating_sub(7)];
    // The byte before the `-` of the hash must be able to stand there.
    let (keep, digits) = if last.is_ascii_lowercase() || last.is_ascii_digit() {
        (max - 6, 5)
    } else {
        (max.saturating_sub(7), 6)
    };
    match head(&full, keep) {
        kept if kept.is_empty() => digest[..digits].to_owned(),
        kept => format!("{kept}-{}", &digest[..digits]),
    }
}

/// Names are ASCII; should one not be, a cut inside a character must not panic.
fn head(name: &str, bytes: usize) -> String {
    String::from_utf8_lossy(&name.as_bytes()[..bytes.min(name.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_only_joined() {
        assert_eq!(safe_concat_name(&["demo", "bootstrap", "template"]), "demo-bootstrap-template");
        let sixty_three = "a".repeat(63);
        assert_eq!(safe_concat_name(&[&sixty_three]), sixty_three);
    }

    #[test]
    fn long_names_keep_57_bytes_and_5_digits() {
        let parts = "very long name to test shortening behavior this should exceed max k8s name length";
        let parts: Vec<&str> = parts.split(' ').collect();
        assert_eq!(
            safe_concat_name(&parts),
            "very-long-name-to-test-shortening-behavior-this-should-ex-e8118"
        );
    }

    #[test]
    fn a_cut_behind_a_dash_keeps_56_bytes_and_6_digits() {
        let name = format!("{}-{}", "a".repeat(56), "b".repeat(20));
        let short = safe_concat_name(&[&name]);
        assert_eq!(short.len(), 63);
        assert!(short.starts_with(&format!("{}-", "a".repeat(56))));
        assert!(short[57..].bytes().all(|b| b.is_ascii_hexdigit()));
    }

    #[test]
    fn the_callers_limit_is_kept() {
        let parts = [
            "long",
            "cluster",
            "name",
            "testing",
            "managed",
            "system-upgrade",
            "controller",
            "fleet",
            "agent",
        ];
        assert_eq!(safe_concat_name_max(53, &parts), "long-cluster-name-testing-managed-system-upgrad-0beef");
        assert_eq!(safe_concat_name_max(3, &["this", "will", "not"]), "thi");
        assert_eq!(safe_concat_name_max(0, &["input"]), "");
        assert_eq!(safe_concat_name_max(6, &["longer-than-six"]).len(), 5);
        assert_eq!(safe_concat_name_max(6, &["-longer-than-six"]).len(), 6);
    }
}
