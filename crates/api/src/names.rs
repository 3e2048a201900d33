//! Names that are derived from other names and shortened without losing uniqueness.
//!
//! The results are byte-for-byte those of `name.SafeConcatName` in rancher/wrangler and `SafeConcatName` in
//! rancher/rancher `pkg/capr/common.go`, so that the objects of clusters that Rancher created are found under
//! these names.

use sha2::{Digest, Sha256};

/// `spec.managedBy` of the Jobs of Drover's own runner. All other Job controllers ignore them.
pub const JOB_RUNNER: &str = "drover.io/job-runner";

/// The characters of random names: no vowels and no similar characters (`k8s.io/apimachinery/pkg/util/rand`, rancher
/// `wrangler/pkg/randomtoken`).
pub const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The name (ID) of the management Cluster of a provisioning Cluster: `c-m-` and eight characters derived
/// from the Cluster's UID. A crash between its creation and the write of its name to the status does not
/// create a second one.
pub fn management_cluster_name(uid: &str) -> String {
    format!("c-m-{}", from_bytes(&Sha256::digest(uid.as_bytes()), 8))
}

/// Derives `length` characters of [`ALPHABET`] from random bytes. Bytes that would make some characters more
/// frequent are replaced by hashing again.
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

/// Joins parts with `-`. A result of 64 bytes or more is truncated and ends with a hash of the full result.
pub fn safe_concat_name(parts: &[&str]) -> String {
    safe_concat_name_max(63, parts)
}

/// Like [`safe_concat_name`], with a maximum length (for hostnames and Helm release names).
///
/// A maximum of five or less has no space for a hash, so the name is only truncated.
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
    // The byte before the `-` of the hash must be a letter or digit.
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

/// Names are ASCII. If one is not, truncation inside a character must not panic.
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
    fn a_truncation_after_a_dash_keeps_56_bytes_and_6_digits() {
        let name = format!("{}-{}", "a".repeat(56), "b".repeat(20));
        let short = safe_concat_name(&[&name]);
        assert_eq!(short.len(), 63);
        assert!(short.starts_with(&format!("{}-", "a".repeat(56))));
        assert!(short[57..].bytes().all(|b| b.is_ascii_hexdigit()));
    }

    #[test]
    fn the_maximum_length_is_respected() {
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
