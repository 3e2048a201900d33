//! Measures the registration of machines: registrations per second, and the latency of `/readyz` in the meantime.
//!
//! ```sh
//! cargo build --release && cargo run --release -p drover-bench-line --bin registrations
//! ```
//!
//! The measured program is `drover` in the directory of this program, or the path in the first argument. The second
//! argument is the number of machines. All machines register at once with one token and the role worker. No agent runs.
//! After a response of 429 or 503, a machine retries after the time in `Retry-After`, as the install script does. The
//! data directory is temporary and is deleted at the end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

const MACHINES: usize = 300;
const NAMESPACE: &str = "fleet-default";
const LIMIT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(50);

/// A server that is stopped when the measurement ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let drover = match args.next() {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("drover"),
    };
    let machines: usize = args.next().map_or(Ok(MACHINES), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let server = Server(
        Command::new(&drover)
            .args(["server", "--bind", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {}", drover.display()))?,
    );
    let config = connect(&dir.path().join("kubeconfig.yaml")).await?;
    let admin = Client::try_from(config.clone())?;
    let token = make_cluster(&admin).await?;

    // The only credential of a machine is the token.
    let mut bare = Config::new(config.cluster_url.clone());
    bare.root_cert = config.root_cert.clone();
    let client = Client::try_from(bare)?;
    let before = (revision(&admin).await?, server.cpu_seconds());
    let (over, retries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let readiness = tokio::spawn(ready_times(client.clone(), over.clone()));
    let begun = Instant::now();
    let mut calls: FuturesUnordered<_> = (0..machines)
        .map(|number| register(client.clone(), token.clone(), number, retries.clone()))
        .collect();
    let mut took = vec![];
    while let Some(time) = calls.next().await {
        took.push(time?);
    }
    let total = begun.elapsed();
    over.store(true, Ordering::SeqCst);
    let ready = readiness.await??;
    let writes = (revision(&admin).await? - before.0) as f64;
    let cpu = server.cpu_seconds() - before.1;
    drop(server);

    println!("| what | measured |\n|---|---|");
    println!("| {machines} registrations at once | {:.1} s |", total.as_secs_f64());
    println!("| registrations per second | {:.1} |", machines as f64 / total.as_secs_f64());
    println!("| one registration (median / slowest) | {} / {} |", shown(&took, 50), shown(&took, 100));
    println!("| CPU of the server per registration | {:.0} ms |", cpu / machines as f64 * 1000.0);
    println!("| writes to the store per registration | {:.1} |", writes / machines as f64);
    println!("| responses that asked for a retry | {} |", retries.load(Ordering::SeqCst));
    println!(
        "| `/readyz` meanwhile (median / p95 / slowest) | {} / {} / {} |",
        shown(&ready, 50),
        shown(&ready, 95),
        shown(&ready, 100)
    );
    Ok(())
}

impl Server {
    /// CPU time of all threads, in user and kernel mode. Unlike wall time, it is independent of other load.
    fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        // The 12th and 13th field after the name in parentheses, which can contain spaces, in hundredths of a second.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
        fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
    }
}

/// The store's revision, which increases with every write.
async fn revision(client: &Client) -> anyhow::Result<u64> {
    let list = client.request_text(Request::get("/api/v1/namespaces?limit=1").body(vec![])?).await?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    let revision = list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    revision.context("the list has no revision")
}

async fn connect(kubeconfig: &Path) -> anyhow::Result<Config> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Ok(read) = Kubeconfig::read_from(kubeconfig) {
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
            let client = Client::try_from(config.clone())?;
            if client.request_text(Request::get("/readyz").body(vec![])?).await.is_ok() {
                return Ok(config);
            }
        }
        if Instant::now() > deadline {
            bail!("the server does not answer");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Creates a cluster for custom machines and returns its registration token.
async fn make_cluster(client: &Client) -> anyhow::Result<String> {
    let resource = ApiResource::erase::<drover_api::provisioning::v1::Cluster>(&());
    let clusters: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let cluster = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "own"},
        "spec": {"kubernetesVersion": "v1.34.1+k3s1", "rkeConfig": {}},
    });
    clusters.create(&PostParams::default(), &serde_json::from_value(cluster)?).await?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let id =
            clusters.get("own").await?.data["status"]["clusterName"].as_str().unwrap_or_default().to_owned();
        if !id.is_empty() {
            let secrets: Api<Secret> = Api::namespaced(client.clone(), &id);
            let secret = secrets.get_opt("crt-token-default-token").await?;
            if let Some(token) = secret.and_then(|secret| secret.data?.remove("token")) {
                return Ok(String::from_utf8(token.0)?);
            }
        }
        if Instant::now() > deadline {
            bail!("the cluster has no registration token");
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn register(
    client: Client,
    token: String,
    number: usize,
    retries: Arc<AtomicUsize>,
) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    loop {
        let request = Request::get("/v3/connect/agent")
            .header("authorization", format!("Bearer {token}"))
            .header("x-cattle-id", format!("machine-{number}"))
            .header("x-cattle-role-worker", "true")
            .header("x-cattle-labels", "cattle.io/os=linux")
            .body(Body::empty())?;
        let answer = client.send(request).await?;
        match answer.status() {
            StatusCode::OK => return Ok(begun.elapsed()),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::UNAUTHORIZED => {}
            other => bail!("machine {number}: {other}"),
        }
        retries.fetch_add(1, Ordering::SeqCst);
        if begun.elapsed() > LIMIT {
            bail!("machine {number} was not registered in {LIMIT:?}");
        }
        let seconds = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(1))).await;
    }
}

/// Measures the latency of `/readyz` repeatedly until the registrations are done.
async fn ready_times(client: Client, over: Arc<AtomicBool>) -> anyhow::Result<Vec<Duration>> {
    let mut took = vec![];
    while !over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        client.request_text(Request::get("/readyz").body(vec![])?).await?;
        took.push(begun.elapsed());
        tokio::time::sleep(LOOK).await;
    }
    Ok(took)
}

fn shown(samples: &[Duration], percent: usize) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort();
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    format!("{:.0} ms", sorted.get(at).copied().unwrap_or_default().as_secs_f64() * 1000.0)
}
