//! Memory of a burst of large requests is returned to the system. The only test in its process, because it measures the
//! process size.
// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::time::{Duration, Instant};

use drover_apiserver::{ApiServer, Options};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::json;
use tower::ServiceExt;

const MIB: usize = 1 << 20;

/// The resident memory of the process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

async fn post(server: &ApiServer, path: &str, body: String) -> u16 {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let response = server.service().oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let _ = response.into_body().collect().await;
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_a_burst_is_returned() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let small = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}});
    assert_eq!(post(&server, "/api/v1/namespaces/a/configmaps", small.to_string()).await, 201);
    let before = resident();
    // Many small values, so that the memory is spread over the arenas, with an object between them that is kept.
    let values: Vec<_> = (0..10_000).map(|n| json!({"name": format!("n{n}"), "value": "v"})).collect();
    let burst = (0..12).map(|n| {
        let container = json!({"name": "c", "image": "i", "env": values});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{n}")}, "spec": {"containers": [container]},
        });
        post(&server, "/api/v1/namespaces/a/pods?dryRun=All", pod.to_string())
    });
    let codes = futures::future::join_all(burst).await;
    assert_eq!(codes, [201; 12]);
    let worst = peak();
    assert!(
        worst > before + 40 * MIB,
        "the burst was too small for the test: {} to {} MiB",
        before / MIB,
        worst / MIB
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while resident() > before + (worst - before) / 2 {
        assert!(
            Instant::now() < deadline,
            "{} MiB before, {} at most, {} after",
            before / MIB,
            worst / MIB,
            resident() / MIB
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{} MiB before, {} at most, {} after", before / MIB, worst / MIB, resident() / MIB);
}

fn peak() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}
