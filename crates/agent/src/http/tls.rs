//! Which servers to trust.

use std::{io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};

/// Why no TLS configuration could be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The PEM contains no certificate.
    #[error("no certificate found in the given PEM")]
    NoCertificate,
    /// Key and certificate do not match, or one of them is invalid.
    #[error("invalid client certificate or key")]
    ClientCertificate,
    /// rustls rejected it.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

/// Which certificates are trusted.
#[derive(Clone, Copy)]
pub enum Trust<'a> {
    /// All. Only if the user configured that.
    Anything,
    /// Those signed by the authorities in the PEM.
    Only(&'a [u8]),
    /// Those that the system trusts, and those signed by the authorities in the PEM.
    System(&'a [u8]),
}

/// Creates a client configuration, optionally with a client certificate (PEM of chain and key).
pub fn client_config(trust: Trust<'_>, client: Option<(&[u8], &[u8])>) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(trust, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(chain);
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| Error::ClientCertificate)?;
            builder.with_client_auth_cert(chain, key).map_err(|_| Error::ClientCertificate)?
        }
    };
    config.resumption = Resumption::in_memory_sessions(4);
    Ok(Arc::new(config))
}

/// The certificate chain ends at an authority that is not trusted.
pub fn is_unknown_issuer(error: &io::Error) -> bool {
    matches!(
        error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()),
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))
    )
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

/// WebPKI with an addition from Go: a certificate that is itself in the given bundle is trusted, which self-signed
/// certificates of Kubernetes components rely on.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    bundle: Vec<CertificateDer<'static>>,
    anything: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(trust: Trust<'_>, provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let (bundle, system) = match trust {
            Trust::Anything => (Vec::new(), false),
            Trust::Only(pem) => {
                let bundle = certificates(pem);
                if bundle.is_empty() {
                    return Err(Error::NoCertificate);
                }
                (bundle, false)
            }
            Trust::System(pem) => (certificates(pem), true),
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(bundle.iter().cloned());
        if system {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let chain = if roots.is_empty() {
            None
        } else {
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().ok()
        };
        Ok(Self { chain, bundle, anything: matches!(trust, Trust::Anything), provider: provider.clone() })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.anything {
            return Ok(ServerCertVerified::assertion());
        }
        let judged = match &self.chain {
            Some(chain) => {
                chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        match judged {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_) | CertificateError::BadSignature,
            )) if self.bundle.iter().any(|known| known == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
