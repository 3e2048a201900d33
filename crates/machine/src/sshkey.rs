//! The SSH key pair of a machine, in OpenSSH's formats.
//!
//! The keys are Ed25519, but the files are named `id_rsa` because readers of the state expect that name. OpenSSH detects
//! the type from the content.

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair},
};

/// A key pair in the format of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKey {
    /// Content of `id_rsa`.
    pub private: String,
    /// Content of `id_rsa.pub`: one line, without the line break.
    pub public: String,
}

/// The system's random number generator failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to generate an SSH key: the system's random number generator failed")]
pub struct KeyError;

impl SshKey {
    /// Generates a new pair.
    pub fn generate(comment: &str) -> Result<SshKey, KeyError> {
        let mut seed = [0u8; 32];
        let mut check = [0u8; 4];
        let random = SystemRandom::new();
        random.fill(&mut seed).map_err(|_| KeyError)?;
        random.fill(&mut check).map_err(|_| KeyError)?;
        SshKey::from_seed(&seed, check, comment)
    }

    fn from_seed(seed: &[u8; 32], check: [u8; 4], comment: &str) -> Result<SshKey, KeyError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| KeyError)?;
        let public = pair.public_key().as_ref();
        let mut wire = Vec::new();
        string(&mut wire, b"ssh-ed25519");
        string(&mut wire, public);
        let mut secret = Vec::new();
        secret.extend_from_slice(&check);
        secret.extend_from_slice(&check);
        string(&mut secret, b"ssh-ed25519");
        string(&mut secret, public);
        string(&mut secret, &[seed, public].concat());
        string(&mut secret, comment.as_bytes());
        for pad in 1u8.. {
            if secret.len().is_multiple_of(8) {
                break;
            }
            secret.push(pad);
        }
        let mut file = b"openssh-key-v1\0".to_vec();
        for text in [&b"none"[..], b"none", b""] {
            string(&mut file, text);
        }
        file.extend_from_slice(&1u32.to_be_bytes());
        string(&mut file, &wire);
        string(&mut file, &secret);
        let encoded = STANDARD.encode(file);
        let mut private = String::from("-----BEGIN OPENSSH PRIVATE KEY-----\n");
        for line in encoded.as_bytes().chunks(70) {
            private.push_str(&String::from_utf8_lossy(line));
            private.push('\n');
        }
        private.push_str("-----END OPENSSH PRIVATE KEY-----\n");
        Ok(SshKey { private, public: format!("ssh-ed25519 {} {comment}", STANDARD.encode(&wire)) })
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn openssh_derives_the_same_public_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("id_rsa");
        let key = SshKey::generate("m1").unwrap();
        std::fs::write(&path, &key.private).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        match Command::new("ssh-keygen").arg("-yf").arg(&path).output() {
            Err(error) => eprintln!("SKIPPED comparison with ssh-keygen: {error}"),
            Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), key.public),
        }
        assert_ne!(key, SshKey::generate("m1").unwrap());
    }
}
