//! The health endpoints of the controller manager, the scheduler and the kubelet of K3s.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::config::Config;
use crate::paths::Paths;

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `/healthz` of a component over TLS with a self-signed certificate at `<cert-dir>/<component>.crt`.
pub async fn serve_secure(
    component: &'static str,
    default_port: u16,
    address: IpAddr,
    config: Config,
    paths: Paths,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> Result<(), Error> {
    let port = config
        .component_arg(component, "secure-port")
        .and_then(|port| port.parse().ok())
        .unwrap_or(default_port);
    let dir = match config.component_arg(component, "cert-dir") {
        Some(dir) => paths.at(&dir),
        None => paths.tls().join(component),
    };
    let tls = self_signed(component, address, &dir)?;
    let listener = listen(SocketAddr::new(address, port)).await?;
    tasks.spawn(drover_https::serve(
        listener,
        Arc::new(tls),
        |request| async move { answer(&request) },
        stop,
    ));
    Ok(())
}

/// Serves the kubelet's `/healthz`, in plain text as the kubelet does.
pub async fn serve_kubelet(
    address: IpAddr,
    tasks: TaskTracker,
    stop: CancellationToken,
) -> Result<(), Error> {
    let listener = listen(SocketAddr::new(address, 10248)).await?;
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                // For example because the process has no free file descriptors.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let service =
                service_fn(|request| async move { Ok::<_, std::convert::Infallible>(answer(&request)) });
            let connection = hyper::server::conn::http1::Builder::new()
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    Ok(())
}

/// Listens at an address.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

fn answer<B>(request: &Request<B>) -> Response<Full<Bytes>> {
    let healthy = matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz");
    let mut response = Response::new(Full::from(if healthy { "ok" } else { "404 page not found\n" }));
    if !healthy {
        *response.status_mut() = http::StatusCode::NOT_FOUND;
    }
    response
}

fn self_signed(component: &str, address: IpAddr, dir: &Path) -> Result<ServerConfig, Error> {
    let failed = |source: rcgen::Error| Error::Certificates(source.into());
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.to_string()];
    let mut params = CertificateParams::new(names).map_err(failed)?;
    // The probe uses this certificate as its CA.
    params.is_ca = rcgen::IsCa::NoCa;
    params.distinguished_name.push(rcgen::DnType::CommonName, component);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    crate::write(&dir.join(format!("{component}.crt")), certificate.pem().as_bytes(), 0o644)?;
    crate::write(&dir.join(format!("{component}.key")), key.serialize_pem().as_bytes(), 0o600)?;
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes())
        .map_err(|e| Error::Certificates(e.into()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key)
        })
        .map_err(|e| Error::Certificates(e.into()))
}
