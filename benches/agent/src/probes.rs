//! Endpoints that are always healthy, and probes of these endpoints like those in the plan of a control plane node.

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// `count` probes of a server in this process.
pub(crate) async fn serve(count: usize) -> anyhow::Result<Value> {
    let (config, _) = crate::agent::certificate()?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut request = [0; 2048];
                let _ = stream.read(&mut request).await;
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                    .await;
                let _ = stream.shutdown().await;
            });
        }
    });
    let probe = json!({
        "initialDelaySeconds": 1, "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 5,
        "httpGet": {"url": format!("https://{address}/healthz"), "insecure": true},
    });
    Ok(Value::Object((0..count).map(|index| (format!("p{index}"), probe.clone())).collect::<Map<_, _>>()))
}
