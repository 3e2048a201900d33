//! TLS for the listener: client certificates are requested but optional, and verified later.
//!
//! As upstream, the handshake accepts any client certificate whose key the client has. The x509 authenticator then
//! verifies the chain, so that an invalid one results in a 401 with a Status instead of a broken connection, and a
//! bearer token can still be used with it.

use super::{Pair, Pki, PkiError};
use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;

/// The current serving certificate; replaced while the listener runs when the addresses change.
#[derive(Debug)]
pub struct ServingCertificate {
    current: RwLock<Arc<CertifiedKey>>,
}

impl ServingCertificate {
    /// Serves this pair.
    pub fn new(pair: &Pair) -> Result<Arc<Self>, PkiError> {
        Ok(Arc::new(Self { current: RwLock::new(certified(pair)?) }))
    }

    /// Uses this pair for new connections.
    pub fn replace(&self, pair: &Pair) -> Result<(), PkiError> {
        let key = certified(pair)?;
        *self.current.write() = key;
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

/// The listener's TLS configuration: HTTP/2 and HTTP/1.1, optional client certificates.
pub fn server_config(pki: &Pki, serving: Arc<ServingCertificate>) -> Result<ServerConfig, PkiError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = OptionalClientCert::new(pki, &provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certified(pair: &Pair) -> Result<Arc<CertifiedKey>, PkiError> {
    let key = ring::sign::any_supported_type(&pair.key()?)?;
    Ok(Arc::new(CertifiedKey::new(pair.chain(), key)))
}

#[derive(Debug)]
struct OptionalClientCert {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl OptionalClientCert {
    fn new(pki: &Pki, provider: &CryptoProvider) -> Result<Self, PkiError> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pki.ca_der().clone())?;
        Ok(Self { hints: roots.subjects(), algorithms: provider.signature_verification_algorithms })
    }
}

impl ClientCertVerifier for OptionalClientCert {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
