//! The endpoints of a management plane that the install script and the agent need, on one TLS port with its own CA.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::{Api, Body, status};

pub type Headers = BTreeMap<String, String>;

/// A management plane with its own CA.
#[derive(Clone)]
pub struct Server {
    pub url: String,
    ca: String,
    /// Handles requests that are not about registration.
    api: Api,
    /// The responses of the next requests, by path.
    instead: Arc<Mutex<Vec<(String, u16, String)>>>,
    pub requests: Arc<Mutex<Vec<(String, Headers)>>>,
}

impl Server {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, Api::new())
    }

    /// Serves the plan secret of `api` too.
    pub fn on(listener: tokio::net::TcpListener, api: Api) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "drover test ca");
        let ca = params.self_signed(&key).unwrap();
        let leaf_key = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_der(ca.der(), &key).unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".into()])
            .unwrap()
            .signed_by(&leaf_key, &issuer)
            .unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    vec![leaf.der().clone()],
                    rustls::pki_types::PrivateKeyDer::Pkcs8(leaf_key.serialize_der().into()),
                )
                .unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let server = Self { url, ca: ca.pem(), api, instead: Arc::default(), requests: Arc::default() };
        let (handle, acceptor) = (server.clone(), tokio_rustls::TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handle, acceptor) = (handle.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        let handle = handle.clone();
                        async move { handle.answer(request).await }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        server
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
        let headers = request
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
            .collect();
        let path = request.uri().path().to_owned();
        self.requests.lock().unwrap().push((path.clone(), headers));
        if let Some((code, text)) = self.instead(&path) {
            let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
            let mut response = Response::builder().status(code);
            if code == 429 {
                response = response.header("Retry-After", "1");
            }
            return Ok(response.body(body).unwrap());
        }
        let body: Bytes = match path.as_str() {
            "/cacerts" => self.ca.clone().into(),
            "/healthz" => "ok".into(),
            "/assets/rancher-system-agent-amd64" | "/assets/rancher-system-agent-arm64" | "/mirror/agent" => {
                std::fs::read(env!("CARGO_BIN_EXE_drover-agent")).unwrap().into()
            }
            "/v3/connect/agent"
                if request
                    .headers()
                    .get("authorization")
                    .is_some_and(|value| value == "Bearer the \"token\"") =>
            {
                self.api.connection_with(&self.url, Some(&self.ca)).into()
            }
            "/v3/connect/agent" => return Ok(status(401, "Unauthorized")),
            _ => return self.api.answer(request).await,
        };
        Ok(Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync()))
    }

    /// The next `times` requests of the path get this response.
    pub fn answer_instead(&self, path: &str, times: usize, code: u16, text: &str) {
        let answer = (path.to_owned(), code, text.to_owned());
        self.instead.lock().unwrap().extend(std::iter::repeat_n(answer, times));
    }

    fn instead(&self, path: &str) -> Option<(u16, String)> {
        let mut instead = self.instead.lock().unwrap();
        let at = instead.iter().position(|(of, ..)| of == path)?;
        let (_, code, text) = instead.remove(at);
        Some((code, text))
    }

    /// The number of requests of a path.
    pub fn count(&self, path: &str) -> usize {
        self.paths().iter().filter(|asked| *asked == path).count()
    }

    /// The headers of the first request of a path.
    pub fn headers(&self, path: &str) -> Headers {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .find(|(asked, _)| asked == path)
            .map(|(_, headers)| headers.clone())
            .unwrap_or_default()
    }

    pub fn checksum(&self) -> String {
        drover_plan::checksum(self.ca.as_bytes())
    }

    pub fn paths(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }
}
