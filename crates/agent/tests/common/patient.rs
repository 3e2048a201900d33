//! A server whose health the test controls.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub async fn serve(healthy: Arc<AtomicBool>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let word = if healthy.load(Ordering::SeqCst) { "200 OK" } else { "503 Service Unavailable" };
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 2048]).await;
                let text = format!("HTTP/1.1 {word}\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    address
}
