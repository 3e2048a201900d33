//! Authenticates client certificates: CN is the user, each O a group.

use crate::clock::Clock;
use crate::identity::{Authenticator, PeerCertificates, UserInfo};
use crate::status::Status;
use futures::future::BoxFuture;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use std::time::Duration;

/// Verifies the chain in [`PeerCertificates`] against the client authority.
pub struct X509 {
    verifier: Arc<dyn ClientCertVerifier>,
    clock: Arc<dyn Clock>,
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
        Ok(Self { verifier, clock })
    }

    fn user(&self, chain: &[CertificateDer<'static>]) -> Result<Option<UserInfo>, Status> {
        let Some((leaf, rest)) = chain.split_first() else { return Ok(None) };
        let now = Duration::from_secs(u64::try_from(self.clock.now().as_second()).unwrap_or_default());
        if let Err(why) = self.verifier.verify_client_cert(leaf, rest, UnixTime::since_unix_epoch(now)) {
            tracing::debug!(%why, "rejected a client certificate");
            return Err(Status::unauthorized());
        }
        let user = user_of(leaf).ok_or_else(Status::unauthorized)?;
        Ok((!user.name.is_empty()).then_some(user))
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

/// The user of a certificate. Upstream also reports which certificate it was.
fn user_of(leaf: &CertificateDer<'_>) -> Option<UserInfo> {
    use sha2::{Digest, Sha256};
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
    use crate::clock::SystemClock;
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
}
