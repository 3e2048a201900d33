//! A certificate authority for a test, and its certificates.

use std::sync::Arc;

/// A certificate authority.
pub struct Authority {
    /// Its certificate.
    pub pem: String,
    key: rcgen::KeyPair,
    certificate: rcgen::Certificate,
}

/// A certificate with its key, as PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), key, certificate }
    }

    /// For a server at 127.0.0.1 or localhost, or for a client.
    pub fn identity(&self) -> Identity {
        let key = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_der(self.certificate.der(), &self.key).unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let leaf = params.signed_by(&key, &issuer).unwrap();
        Identity { certificate: leaf.pem(), key: key.serialize_pem() }
    }

    /// TLS of a client that trusts only this CA.
    pub fn client(&self) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

impl Identity {
    /// TLS of a server with this identity; with a CA, only for its clients.
    pub fn server(&self, clients: Option<&Authority>) -> Arc<rustls::ServerConfig> {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(authority.certificate.der().clone()).unwrap();
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
    }
}
