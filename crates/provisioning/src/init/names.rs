//! Names and random-looking words, derived so that a restart finds them again.

pub use drover_api::names::{ALPHABET, from_bytes, management_cluster_name};
use sha2::{Digest, Sha256};

/// Length of a token.
pub const TOKEN_LENGTH: usize = 54;

/// A fresh token out of 32 random bytes.
pub fn token(random: [u8; 32]) -> String {
    from_bytes(&random, TOKEN_LENGTH)
}

/// The name of the user of a cluster's kubeconfig.
pub fn kubeconfig_user(namespace: &str, name: &str) -> String {
    let principal = format!("system://provisioning/{namespace}/{name}");
    let digest = Sha256::digest(principal.as_bytes());
    format!("u-{}", &base32_lower(&digest)[..10])
}

fn base32_lower(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut out = String::new();
    let (mut buffer, mut bits) = (0_u32, 0);
    for byte in bytes {
        buffer = (buffer << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            out.push(LETTERS[((buffer >> bits) & 31) as usize] as char);
        }
        buffer &= (1 << bits) - 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioning_check_2_the_twin_keeps_its_name() {
        let name = management_cluster_name("11111111-2222-3333-4444-555555555555");
        assert_eq!(name, management_cluster_name("11111111-2222-3333-4444-555555555555"));
        assert_ne!(name, management_cluster_name("11111111-2222-3333-4444-555555555556"));
        let suffix = name.strip_prefix("c-m-").unwrap();
        assert!(suffix.len() == 8 && suffix.bytes().all(|byte| ALPHABET.contains(&byte)), "{name}");
    }

    #[test]
    fn tokens_have_54_characters_of_the_alphabet() {
        let token = token([7; 32]);
        assert!(token.len() == 54 && token.bytes().all(|byte| ALPHABET.contains(&byte)), "{token}");
        assert_ne!(token, super::token([8; 32]));
    }

    #[test]
    fn users_look_like_the_originals() {
        assert_eq!(&base32_lower(b"fooba")[..8], "mzxw6ytb");
        let user = kubeconfig_user("default", "demo");
        assert!(user.starts_with("u-") && user.len() == 12, "{user}");
    }
}
