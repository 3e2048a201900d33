//! A CA and its servers.

use std::sync::Arc;

pub struct Authority {
    pub pem: String,
    key: rcgen::KeyPair,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub fn new() -> Self {
        use std::hash::{BuildHasher as _, Hasher as _};
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let name = format!("test authority {}", std::hash::RandomState::new().build_hasher().finish());
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), key, certificate }
    }

    /// For a server on 127.0.0.1.
    pub fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        let key = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_der(self.certificate.der(), &self.key).unwrap();
        let names = vec!["127.0.0.1".into()];
        let leaf = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![leaf.der().clone()], key)
                .unwrap();
        Arc::new(config).into()
    }
}
