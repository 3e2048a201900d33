//! The server with TLS and client certificates.

use crate::harness::{Cluster, DEADLINE, Setup};
use drover_apiserver::PeerCertificates;
use drover_apiserver::auth::pki::{self, Pair, Pki, ServingCertificate};
use drover_apiserver::storage::MemoryStorage;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// A cluster with a listener, which stops when this is dropped.
pub(crate) struct Listening {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) address: SocketAddr,
    pub(crate) serving: Arc<ServingCertificate>,
    _tasks: JoinSet<()>,
}

pub(crate) async fn listen(cluster: Cluster) -> Listening {
    let cluster = Arc::new(cluster);
    let sans = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pair = cluster.pki.serving(&sans, Timestamp::now()).unwrap();
    let serving = ServingCertificate::new(&pair).unwrap();
    let config = pki::server_config(&cluster.pki, serving.clone()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = cluster.server.service();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, service) = (acceptor.clone(), service.clone());
            connections.spawn(async move {
                let Ok(tls) = acceptor.accept(stream).await else { return };
                let chain = tls.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
                let handler =
                    hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
                        if !chain.is_empty() {
                            request.extensions_mut().insert(PeerCertificates(chain.clone()));
                        }
                        service.clone().oneshot(request)
                    });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(tls), handler).await;
            });
        }
    });
    Listening { cluster, address, serving, _tasks: tasks }
}

/// One request over a new HTTP/1.1 or HTTP/2 connection.
async fn request(
    listening: &Listening,
    trust: &Pki,
    client: Option<&Pair>,
    alpn: &[u8],
    path: &str,
) -> (u16, Value) {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trust.ca_der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        Some(pair) => builder.with_client_auth_cert(pair.chain(), pair.key().unwrap()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(listening.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(alpn));
    let call = hyper::Request::builder()
        .method("POST")
        .uri(format!("https://localhost{path}"))
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from("{}")))
        .unwrap();
    let io = TokioIo::new(tls);
    let work = async {
        let response = if alpn == b"h2" {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(call).await.unwrap()
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(call).await.unwrap()
        };
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    };
    tokio::time::timeout(DEADLINE, work).await.unwrap()
}

const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

#[tokio::test]
async fn certificates_authenticate_and_those_of_others_are_401() {
    let listening = listen(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    let pki = &listening.cluster.pki;
    let now = Timestamp::now();
    let admin = pki.admin(now).unwrap();
    for alpn in [&b"h2"[..], &b"http/1.1"[..]] {
        let (code, body) = request(&listening, pki, Some(&admin), alpn, WHOAMI).await;
        assert_eq!(code, 201, "{body}");
        let me = &body["status"]["userInfo"];
        assert_eq!(me["username"], "system:admin");
        assert_eq!(me["groups"], json!(["system:masters", "system:authenticated"]));
    }
    let foreign = Pki::in_memory(now).unwrap().admin(now).unwrap();
    let (code, body) = request(&listening, pki, Some(&foreign), b"h2", WHOAMI).await;
    assert_eq!((code, body["reason"].as_str()), (401, Some("Unauthorized")));
    let (code, body) = request(&listening, pki, None, b"h2", WHOAMI).await;
    assert_eq!(code, 403, "{body}");
    assert!(body["message"].as_str().unwrap().contains("system:anonymous"));
}

#[tokio::test]
async fn a_new_serving_certificate_is_used_without_a_restart() {
    let listening = listen(Setup::new(Arc::new(MemoryStorage::new())).start().await).await;
    let pki = &listening.cluster.pki;
    let other = Arc::new(Pki::in_memory(Timestamp::now()).unwrap());
    let pair = other.serving(&["localhost".to_owned()], Timestamp::now()).unwrap();
    let admin = pki.admin(Timestamp::now()).unwrap();
    assert_eq!(request(&listening, pki, Some(&admin), b"h2", WHOAMI).await.0, 201);
    listening.serving.replace(&pair).unwrap();
    assert_eq!(request(&listening, &other, Some(&admin), b"h2", WHOAMI).await.0, 201);
}
