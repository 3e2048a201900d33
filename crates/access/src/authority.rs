//! The certificate authority of a cluster's API: the certificates in a registration, compared with those that the
//! cluster's control-plane machines reported. Pure.

use std::collections::BTreeSet;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

/// Larger bundles are rejected.
const LARGEST: usize = 64 * 1024;

/// The certificates in a PEM text, without regard to order, comments and line breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority(BTreeSet<Vec<u8>>);

impl Authority {
    /// `None` if the text contains no certificate, or something unreadable.
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        if pem.len() > LARGEST {
            return None;
        }
        let read: Result<BTreeSet<_>, _> =
            CertificateDer::pem_slice_iter(pem).map(|found| found.map(|der| der.to_vec())).collect();
        read.ok().filter(|certificates| !certificates.is_empty()).map(Self)
    }

    /// Whether a control-plane machine reported all of these certificates: an additional one in a registration would
    /// be trusted like the others.
    pub fn is_reported(&self, reports: &[Self]) -> bool {
        reports.iter().any(|report| self.0.is_subset(&report.0))
    }

    /// The shortened SHA-256 of the first certificate, for people to compare.
    pub fn fingerprint(&self) -> String {
        let first = self.0.first().map(|der| Sha256::digest(der).to_vec()).unwrap_or_default();
        first.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(name: &str) -> String {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn every_certificate_of_a_registration_must_be_reported() {
        let (old, new, foreign) = (pem("old"), pem("new"), pem("foreign"));
        let read = |text: &str| Authority::from_pem(text.as_bytes()).unwrap();
        let both = read(&format!("# rotated\n{old}\n{new}"));
        assert_eq!(both, read(&format!("{new}{old}")));
        let reports = [read(&old), both.clone()];
        for good in [&old, &new, &format!("{new}{old}")] {
            assert!(read(good).is_reported(&reports));
        }
        for bad in [&foreign, &format!("{old}{foreign}")] {
            assert!(!read(bad).is_reported(&reports));
        }
        assert!(!both.is_reported(&[read(&old), read(&new)]), "no machine reported both");
        assert!(!read(&old).is_reported(&[]));
        assert_eq!(read(&old).fingerprint().len(), 16);
        assert_ne!(read(&old).fingerprint(), read(&new).fingerprint());
    }

    #[test]
    fn a_text_without_certificates_is_not_an_authority() {
        let broken = "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n";
        let large = format!("{}{}", " ".repeat(LARGEST), pem("x"));
        for text in
            ["", "ca", broken, &large, "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"]
        {
            assert_eq!(Authority::from_pem(text.as_bytes()), None, "{text}");
        }
    }
}
