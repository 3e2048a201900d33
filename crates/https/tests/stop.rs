//! A stop lets requests finish, even while another connection has not completed its handshake.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_https::Incoming;
use drover_testkit::tls::Authority;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// How long the handler works after the stop.
const WORK: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_request_finishes_while_another_connection_never_begins_its_handshake() {
    let authority = Authority::new("stop");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let (asked, answered) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let (stopped, begun, done) = (stop.clone(), asked.clone(), answered.clone());
    let handler = move |_: Request<Incoming>| {
        let (stopped, begun, done) = (stopped.clone(), begun.clone(), done.clone());
        async move {
            begun.cancel();
            stopped.cancelled().await;
            tokio::time::sleep(WORK).await;
            done.store(true, Ordering::SeqCst);
            Response::new(Full::<Bytes>::from("whole"))
        }
    };
    let serving =
        tokio::spawn(drover_https::serve(listener, authority.identity().server(None), handler, stop.clone()));

    let _silent = TcpStream::connect(address).await.unwrap();
    let connected = TcpStream::connect(address).await.unwrap();
    let tls = trusting(&authority).connect("127.0.0.1".try_into().unwrap(), connected).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
    let answer = tokio::spawn(async move { sender.send_request(request).await });
    asked.cancelled().await;
    stop.cancel();
    serving.await.unwrap();
    assert!(answered.load(Ordering::SeqCst), "stopped before the request was answered");
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
}

fn trusting(authority: &Authority) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
