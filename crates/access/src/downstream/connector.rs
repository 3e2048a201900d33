//! Opens TLS connections to a cluster's API inside its tunnel, for hyper's client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use drover_tunnel::{Registry, Session, TunnelStream};
use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::{BoxError, Service};

const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// The tunnel to use.
#[derive(Clone)]
pub(super) enum Route {
    /// The newest accepted one.
    Newest(Registry, Arc<str>),
    /// This one, which has not been accepted yet.
    Through(Session),
}

/// Connects to one cluster.
#[derive(Clone)]
pub(super) struct TunnelConnector {
    way: Route,
    tls: TlsConnector,
}

impl TunnelConnector {
    /// `ca` is the PEM of the API's certificate authority.
    pub(super) fn new(way: Route, ca: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca) {
            let certificate = certificate.map_err(|e| format!("caCert is not PEM: {e}"))?;
            roots.add(certificate).map_err(|e| format!("caCert: {e}"))?;
        }
        if roots.is_empty() {
            return Err("caCert contains no certificate".into());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Cache sessions of one server instead of 32.
        config.resumption = Resumption::in_memory_sessions(8);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { way, tls: TlsConnector::from(Arc::new(config)) })
    }

    async fn connect(self, uri: Uri) -> Result<Tunnelled, BoxError> {
        let host = uri.host().ok_or("the URL has no host")?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let stream = match &self.way {
            Route::Newest(tunnels, cluster) => tunnels.dial(cluster, "tcp", &address).await?,
            Route::Through(session) => session.dial("tcp", &address).await?,
        };
        let name = ServerName::try_from(host)?;
        let tls = tokio::time::timeout(CONNECT_LIMIT, self.tls.connect(name, stream)).await??;
        Ok(Tunnelled(TokioIo::new(tls)))
    }
}

impl Service<Uri> for TunnelConnector {
    type Response = Tunnelled;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Tunnelled, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection for hyper.
pub(super) struct Tunnelled(TokioIo<TlsStream<TunnelStream>>);

impl Connection for Tunnelled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Tunnelled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Tunnelled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
