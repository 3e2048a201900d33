//! A HEAD is answered like a GET without the body, in every version of HTTP.
#![allow(clippy::unwrap_used)]

use drover_https::Incoming;
use drover_testkit::tls::Authority;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn head_over_http_2_has_no_body() {
    let authority = Authority::new("head");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let handler =
        |_: Request<Incoming>| async { Response::new(Full::new(Bytes::from_static(b"ok, all of it"))) };
    tokio::spawn(drover_https::serve(listener, authority.identity().server(None), handler, stop));

    let mut config = authority.client();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tls = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = tls.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for method in [Method::HEAD, Method::GET] {
        let request =
            Request::builder().method(&method).uri("https://localhost/x").body(Empty::<Bytes>::new());
        let answer = client.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.headers()["content-length"], "13", "{method}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), if method == Method::GET { 13 } else { 0 }, "{method}");
    }
}
