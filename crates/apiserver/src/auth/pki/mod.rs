//! The cluster's certificate authority and the certificates it signs.
//!
//! Everything is stored as PEM files (mode 0600) in one directory, or only in memory for short-lived clusters. Serving
//! certificates are reissued when the addresses change or when they are about to expire; the authority and the
//! service-account key are created once.

mod files;
mod kubeconfig;
mod tls;

pub use kubeconfig::{Credential, kubeconfig};
pub use tls::{ServingCertificate, server_config};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const YEAR: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Certificates become valid slightly before they are issued, because the clocks of clients may be late.
const BACKDATE: SignedDuration = SignedDuration::from_mins(60);

/// Errors of keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// A file has invalid content.
    #[error("{path} is invalid: {why}; remove it to create a new one")]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A key or certificate could not be created.
    #[error("failed to create a certificate for {subject}")]
    Issue {
        /// The subject.
        subject: String,
        /// The error.
        #[source]
        source: rcgen::Error,
    },
    /// rustls rejected the key or certificate.
    #[error("failed to set up TLS")]
    Tls(#[from] rustls::Error),
}

/// A certificate (chain) and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub cert_pem: String,
    /// Its PKCS#8 key.
    pub key_pem: String,
}

impl Pair {
    /// The certificate chain in DER.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(self.cert_pem.as_bytes()).filter_map(Result::ok).collect()
    }

    /// The key in DER.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, PkiError> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|e| PkiError::Content { path: PathBuf::from("key"), why: e.to_string() })
    }
}

/// The certificate authority of a cluster.
pub struct Pki {
    dir: Option<PathBuf>,
    ca_pem: String,
    ca_der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    sa_key_pem: String,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens the authority in a directory; creates missing parts.
    pub fn open(dir: &Path, now: Timestamp) -> Result<Pki, PkiError> {
        files::create_dir(dir)?;
        let (cert, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        let ca = match (files::read(&cert)?, files::read(&key)?) {
            (Some(cert_pem), Some(key_pem)) => Pair { cert_pem, key_pem },
            (Some(_), None) => {
                return Err(PkiError::Content { path: cert, why: "its key ca.key is missing".into() });
            }
            _ => {
                let made = new_authority(now)?;
                // The key first: a certificate without its key is the only incomplete state that is not repaired.
                files::write(&key, &made.key_pem)?;
                files::write(&cert, &made.cert_pem)?;
                made
            }
        };
        let sa = dir.join("service-account.key");
        let sa_key_pem = match files::read(&sa)? {
            Some(pem) => pem,
            None => {
                let pem = new_key("service accounts")?.serialize_pem();
                files::write(&sa, &pem)?;
                pem
            }
        };
        Self::from_parts(Some(dir.to_owned()), ca, sa_key_pem)
    }

    /// An authority that is not stored.
    pub fn in_memory(now: Timestamp) -> Result<Pki, PkiError> {
        Self::from_parts(None, new_authority(now)?, new_key("service accounts")?.serialize_pem())
    }

    fn from_parts(dir: Option<PathBuf>, ca: Pair, sa_key_pem: String) -> Result<Pki, PkiError> {
        let path = dir.as_deref().unwrap_or(Path::new("")).join("ca.crt");
        let bad = |why: String| PkiError::Content { path: path.clone(), why };
        let ca_der = ca.chain().into_iter().next().ok_or_else(|| bad("no certificate in it".into()))?;
        let key = KeyPair::from_pem(&ca.key_pem).map_err(|e| bad(e.to_string()))?;
        let issuer = Issuer::from_ca_cert_der(&ca_der, key).map_err(|e| bad(e.to_string()))?;
        Ok(Pki { dir, ca_pem: ca.cert_pem, ca_der, issuer, sa_key_pem })
    }

    /// The authority's certificate, for clients.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The same in DER.
    pub fn ca_der(&self) -> &CertificateDer<'static> {
        &self.ca_der
    }

    /// The key (P-256, PKCS#8 PEM) that signs service-account tokens.
    pub fn service_account_key_pem(&self) -> &str {
        &self.sa_key_pem
    }

    /// The serving certificate for these DNS names and addresses; stored until they change.
    pub fn serving(&self, sans: &[String], now: Timestamp) -> Result<Pair, PkiError> {
        let wanted: BTreeSet<&str> = sans.iter().map(String::as_str).collect();
        self.load_or_issue(
            "serving",
            now,
            |cert| subject_alt_names(cert) == wanted.iter().map(|s| (*s).to_owned()).collect(),
            || serving_params(sans),
        )
    }

    /// A new serving certificate that is not stored: for a temporary listener.
    pub fn temporary_serving(&self, sans: &[String], now: Timestamp) -> Result<Pair, PkiError> {
        self.sign(serving_params(sans)?, "the server", now)
    }

    /// A client certificate for the administrator, `system:admin` in group `system:masters`.
    pub fn admin(&self, now: Timestamp) -> Result<Pair, PkiError> {
        self.load_or_issue(
            "admin",
            now,
            |_| true,
            || Ok(client_params("system:admin", Some("system:masters"))),
        )
    }

    /// A new client certificate that is not stored.
    pub fn client(&self, user: &str, group: Option<&str>, now: Timestamp) -> Result<Pair, PkiError> {
        self.sign(client_params(user, group), user, now)
    }

    /// The pair in `<name>.crt/.key` if this authority issued it, it does not expire soon, and `fits` accepts it;
    /// otherwise a new one.
    fn load_or_issue(
        &self,
        name: &str,
        now: Timestamp,
        fits: impl Fn(&x509_parser::certificate::X509Certificate<'_>) -> bool,
        params: impl FnOnce() -> Result<CertificateParams, PkiError>,
    ) -> Result<Pair, PkiError> {
        let paths = self.dir.as_ref().map(|d| (d.join(format!("{name}.crt")), d.join(format!("{name}.key"))));
        if let Some((cert, key)) = &paths
            && let (Some(cert_pem), Some(key_pem)) = (files::read(cert)?, files::read(key)?)
        {
            let pair = Pair { cert_pem, key_pem };
            if self.is_valid(&pair, now, fits) {
                return Ok(pair);
            }
        }
        let pair = self.sign(params()?, name, now)?;
        if let Some((cert, key)) = &paths {
            files::write(key, &pair.key_pem)?;
            files::write(cert, &pair.cert_pem)?;
        }
        Ok(pair)
    }

    fn is_valid(
        &self,
        pair: &Pair,
        now: Timestamp,
        fits: impl Fn(&x509_parser::certificate::X509Certificate<'_>) -> bool,
    ) -> bool {
        let Some(der) = pair.chain().into_iter().next() else { return false };
        let Ok((_, cert)) = x509_parser::parse_x509_certificate(&der) else { return false };
        let Ok((_, ca)) = x509_parser::parse_x509_certificate(&self.ca_der) else { return false };
        let Ok(key) = KeyPair::from_pem(&pair.key_pem) else { return false };
        // Renewed in the last third of its lifetime, so that an occasionally restarted server never has an expired one.
        let (start, end) = (cert.validity().not_before.timestamp(), cert.validity().not_after.timestamp());
        now.as_second() < end - (end - start) / 3
            && cert.verify_signature(Some(ca.public_key())).is_ok()
            && cert.public_key().subject_public_key.data.as_ref() == key.public_key_raw()
            && fits(&cert)
    }

    fn sign(&self, mut params: CertificateParams, subject: &str, now: Timestamp) -> Result<Pair, PkiError> {
        set_validity(&mut params, now, YEAR);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = new_key(subject)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(|source| issue(subject, source))?;
        Ok(Pair { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }
}

fn serving_params(sans: &[String]) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(sans.to_vec()).map_err(|source| issue("the server", source))?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.distinguished_name = distinguished_name("kube-apiserver", None);
    Ok(params)
}

fn new_authority(now: Timestamp) -> Result<Pair, PkiError> {
    let mut params = CertificateParams::default();
    set_validity(&mut params, now, YEAR.saturating_mul(10));
    // Each authority has a unique name, so that clients with several authorities do not confuse them.
    params.distinguished_name = distinguished_name(&format!("drover-ca@{}", now.as_second()), None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = new_key("the authority")?;
    let cert = params.self_signed(&key).map_err(|source| issue("the authority", source))?;
    Ok(Pair { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
}

fn new_key(subject: &str) -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|source| issue(subject, source))
}

fn issue(subject: &str, source: rcgen::Error) -> PkiError {
    PkiError::Issue { subject: subject.to_owned(), source }
}

fn client_params(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(user, group);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn distinguished_name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    if let Some(o) = organization {
        dn.push(DnType::OrganizationName, o);
    }
    dn.push(DnType::CommonName, common_name);
    dn
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, lifetime: SignedDuration) {
    let at = |t: Timestamp| {
        rcgen::date_time_ymd(1970, 1, 1)
            + std::time::Duration::from_secs(u64::try_from(t.as_second()).unwrap_or_default())
    };
    params.not_before = at(now.checked_sub(BACKDATE).unwrap_or(now));
    params.not_after = at(now.checked_add(lifetime).unwrap_or(now));
}

fn subject_alt_names(cert: &x509_parser::certificate::X509Certificate<'_>) -> BTreeSet<String> {
    use x509_parser::extensions::GeneralName;
    let Ok(Some(ext)) = cert.subject_alternative_name() else { return BTreeSet::new() };
    ext.value
        .general_names
        .iter()
        .filter_map(|n| match n {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(b) => match b.len() {
                4 => <[u8; 4]>::try_from(*b).ok().map(|b| std::net::IpAddr::from(b).to_string()),
                16 => <[u8; 16]>::try_from(*b).ok().map(|b| std::net::IpAddr::from(b).to_string()),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn now() -> Timestamp {
        Timestamp::from_second(1_790_000_000).unwrap()
    }

    fn sans(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn the_authority_survives_a_restart_and_its_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path(), now()).unwrap();
        let admin = first.admin(now()).unwrap();
        let again = Pki::open(dir.path(), now()).unwrap();
        assert_eq!(first.ca_pem(), again.ca_pem());
        assert_eq!(first.service_account_key_pem(), again.service_account_key_pem());
        assert_eq!(admin.cert_pem, again.admin(now()).unwrap().cert_pem);
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        }
    }

    #[test]
    fn the_serving_certificate_is_reissued_for_new_addresses_and_before_expiry() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), now()).unwrap();
        let two = sans(&["localhost", "127.0.0.1"]);
        let first = pki.serving(&two, now()).unwrap();
        assert_eq!(first.cert_pem, pki.serving(&sans(&["127.0.0.1", "localhost"]), now()).unwrap().cert_pem);
        let third = pki.serving(&sans(&["localhost", "127.0.0.1", "::1"]), now()).unwrap();
        assert_ne!(first.cert_pem, third.cert_pem);
        let later = now() + SignedDuration::from_hours(24 * 300);
        assert_ne!(
            third.cert_pem,
            pki.serving(&sans(&["localhost", "127.0.0.1", "::1"]), later).unwrap().cert_pem
        );
    }

    #[test]
    fn certificates_of_another_authority_are_replaced() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = Pki::open(a.path(), now()).unwrap().admin(now()).unwrap();
        for f in ["admin.crt", "admin.key"] {
            std::fs::copy(a.path().join(f), b.path().join(f)).unwrap();
        }
        assert_ne!(one.cert_pem, Pki::open(b.path(), now()).unwrap().admin(now()).unwrap().cert_pem);
    }

    #[test]
    fn an_invalid_authority_file_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), now()).unwrap();
        std::fs::write(dir.path().join("ca.crt"), "junk").unwrap();
        let error = Pki::open(dir.path(), now()).unwrap_err().to_string();
        assert!(error.contains("ca.crt is invalid"), "{error}");
        std::fs::remove_file(dir.path().join("ca.key")).unwrap();
        assert!(Pki::open(dir.path(), now()).unwrap_err().to_string().contains("ca.key is missing"));
    }
}
