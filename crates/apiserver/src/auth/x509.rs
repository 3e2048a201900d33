//! Authenticates client certificates: CN is the user, each O a group.

use crate::clock::Clock;
use crate::identity::{Authenticator, PeerCertificates, UserInfo};
use crate::status::Status;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Verified certificates that are remembered: clients send many requests over few connections.
const REMEMBERED: usize = 256;

/// Verifies the chain in [`PeerCertificates`] against the client authority.
pub struct X509 {
    verifier: Arc<dyn ClientCertVerifier>,
    clock: Arc<dyn Clock>,
    verified: Mutex<HashMap<Fingerprint, Verified>>,
}

/// The hash of a whole chain: an intermediate is part of what was verified.
type Fingerprint = [u8; 32];

struct Verified {
    user: UserInfo,
    /// Seconds since 1970 between which every certificate of the chain is valid.
    valid: RangeInclusive<i64>,
}

impl X509 {
    /// Trusts certificates for client authentication that `ca` signed.
    pub fn new(ca: &CertificateDer<'static>, clock: Arc<dyn Clock>) -> Result<Self, super::pki::PkiError> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        Ok(Self { verifier, clock, verified: Mutex::default() })
    }

    fn user(&self, chain: &[CertificateDer<'static>]) -> Result<Option<UserInfo>, Status> {
        let Some((leaf, rest)) = chain.split_first() else { return Ok(None) };
        let now = self.clock.now().as_second();
        let fingerprint = fingerprint(chain);
        let known = |verified: &HashMap<_, Verified>| {
            verified.get(&fingerprint).filter(|v| v.valid.contains(&now)).map(|v| v.user.clone())
        };
        if let Some(user) = known(&self.verified.lock()) {
            return Ok(Some(user));
        }
        let since = Duration::from_secs(u64::try_from(now).unwrap_or_default());
        if let Err(why) = self.verifier.verify_client_cert(leaf, rest, UnixTime::since_unix_epoch(since)) {
            tracing::debug!(%why, "rejected a client certificate");
            return Err(Status::unauthorized());
        }
        let user = user_of(leaf).ok_or_else(Status::unauthorized)?;
        if user.name.is_empty() {
            return Ok(None);
        }
        if let Some(valid) = validity(chain) {
            let mut verified = self.verified.lock();
            if verified.len() >= REMEMBERED {
                verified.clear();
            }
            verified.insert(fingerprint, Verified { user: user.clone(), valid });
        }
        Ok(Some(user))
    }
}

impl Authenticator for X509 {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<UserInfo>, Status>> {
        let result = match request.extensions.get::<PeerCertificates>() {
            Some(chain) => self.user(&chain.0),
            None => Ok(None),
        };
        Box::pin(std::future::ready(result))
    }
}

fn fingerprint(chain: &[CertificateDer<'_>]) -> Fingerprint {
    let mut hash = Sha256::new();
    for certificate in chain {
        hash.update(certificate.len().to_le_bytes());
        hash.update(certificate);
    }
    hash.finalize().into()
}

fn validity(chain: &[CertificateDer<'_>]) -> Option<RangeInclusive<i64>> {
    let (mut from, mut until) = (i64::MIN, i64::MAX);
    for certificate in chain {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let validity = certificate.validity();
        from = from.max(validity.not_before.timestamp());
        until = until.min(validity.not_after.timestamp());
    }
    Some(from..=until)
}

/// The user of a certificate. Upstream also reports which certificate it was.
fn user_of(leaf: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, cert) = x509_parser::parse_x509_certificate(leaf).ok()?;
    let subject = cert.subject();
    let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    let id = format!("X509SHA256={}", hex::encode(Sha256::digest(leaf)));
    let extra = [("authentication.kubernetes.io/credential-id".to_owned(), vec![id])].into();
    Some(UserInfo { name, groups, extra, ..UserInfo::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::pki::Pki;
    use crate::clock::{SystemClock, TokioClock};
    use jiff::{SignedDuration, Timestamp};

    fn chain_of(pki: &Pki, at: Timestamp) -> Vec<CertificateDer<'static>> {
        pki.client("jane", Some("devs"), at).unwrap().chain()
    }

    #[test]
    fn the_subject_is_the_user_and_foreign_or_expired_certificates_are_rejected() {
        let now = Timestamp::now();
        let (pki, other) = (Pki::in_memory(now).unwrap(), Pki::in_memory(now).unwrap());
        let x509 = X509::new(pki.ca_der(), Arc::new(SystemClock)).unwrap();
        let user = x509.user(&chain_of(&pki, now)).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups.as_slice()), ("jane", &["devs".to_owned()][..]));
        assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("X509SHA256="));
        assert_eq!(x509.user(&chain_of(&pki, now)).unwrap().unwrap().name, "jane", "remembered");
        assert_eq!(x509.user(&[]).unwrap(), None);
        assert_eq!(x509.user(&chain_of(&other, now)).unwrap_err().code, 401);
        let long_ago = now - SignedDuration::from_hours(24 * 400);
        assert_eq!(x509.user(&chain_of(&pki, long_ago)).unwrap_err().code, 401);
        let serving = pki.serving(&["localhost".to_owned()], now).unwrap().chain();
        assert_eq!(
            x509.user(&serving).unwrap_err().code,
            401,
            "a serving certificate is not a client certificate"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_remembered_certificate_expires() {
        let now = Timestamp::now();
        let pki = Pki::in_memory(now).unwrap();
        let clock = Arc::new(TokioClock::starting_at(now));
        let x509 = X509::new(pki.ca_der(), clock).unwrap();
        let chain = chain_of(&pki, now);
        assert_eq!(x509.user(&chain).unwrap().unwrap().name, "jane");
        assert_eq!(x509.verified.lock().len(), 1);
        tokio::time::advance(Duration::from_hours(24 * 400)).await;
        assert_eq!(x509.user(&chain).unwrap_err().code, 401);
    }
}
