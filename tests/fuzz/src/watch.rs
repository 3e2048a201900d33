//! A server's responses to a watch, read by the real client.

use std::io;
use std::sync::Arc;

use drover_agent::config::Connection;
use drover_agent::host::{BoxFuture, BoxIo, MemoryHost, Program};
use drover_agent::remote::api::{Api, Event};
use drover_agent::remote::secret::Secret;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Answers every request with these bytes.
struct Server(Arc<[u8]>);

impl Program for Server {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> BoxFuture<'a, io::Result<BoxIo>> {
        let bytes = self.0.clone();
        Box::pin(async move {
            let (here, mut there) = tokio::io::duplex(64 * 1024);
            tokio::spawn(async move {
                let _ = there.read(&mut [0; 2048]).await;
                let _ = there.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await;
                let _ = there.write_all(&bytes).await;
            });
            Ok(Box::new(here) as BoxIo)
        })
    }
}

const KUBECONFIG: &str = r#"{"clusters": [{"name": "a", "cluster": {"server": "http://manager"}}],
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "users": [{"name": "a", "user": {}}]}"#;

/// Lines of a watch: each contains at most one event, and a secret round-trips.
pub fn watch_lines(data: &[u8]) {
    let connection =
        Connection { kube_config: KUBECONFIG.into(), namespace: "n".into(), secret_name: "s".into() };
    let lines = data.split(|byte| *byte == b'\n').count();
    let bytes: Arc<[u8]> = data.into();
    block_on(async move {
        let host = Arc::new(MemoryHost::new(jiff::Timestamp::UNIX_EPOCH, 1, Server(bytes)));
        let api = Api::new(host, &connection, false, false).expect("the connection is valid");
        let mut watch = api.watch("1", 60).await.expect("the server answers");
        let mut count = 0;
        while let Ok(Some(event)) = watch.next().await {
            count += 1;
            if let Event::Changed(secret) = event {
                let _ = (secret.revision(), secret.plan_checksum());
                let written = secret.to_json();
                let again = serde_json::from_slice(&written).expect("written output is JSON");
                let again = Secret::from_value(again).expect("and a secret");
                assert_eq!(again.to_json(), written, "the second output is equal to the first");
            }
        }
        assert!(count <= lines, "{count} events in {lines} lines");
    });
}

/// Runs a future to completion on this thread.
pub(crate) fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.unwrap().block_on(work);
}
