//! The effect of the install script: the machine registers, and finds its agent configured.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drover_agent::host::{Attr, Host, MemoryHost};
use drover_agent::http::{Client, Url, read_body, tls};
use http::Request;
use http_body_util::Full;
use sha2::{Digest, Sha256};

pub(crate) const CONFIG: &str = "/etc/rancher/agent/config.yaml";
const CONNECTION: &str = "/var/lib/rancher/agent/rancher2_connection_info.json";
const RETRY: Duration = Duration::from_millis(200);
const LIMIT: usize = 1 << 20;
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const PRIVATE: Attr = Attr { mode: 0o600, owner: None };

/// What the script is told.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    server: String,
    token: String,
    ca_checksum: String,
    worker: bool,
    labels: String,
}

impl Order {
    /// By the variables at the head of a machine's own script.
    pub(crate) fn of_script(script: &str) -> Self {
        let variable = |name: &str| {
            let found = script
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'));
            found.unwrap_or_else(|| panic!("the script has no {name}")).to_owned()
        };
        Self {
            server: variable("CATTLE_SERVER"),
            token: variable("CATTLE_TOKEN"),
            ca_checksum: variable("CATTLE_CA_CHECKSUM"),
            worker: false,
            labels: String::new(),
        }
    }

    /// By the arguments of the command that a person runs.
    pub(crate) fn of_command(command: &str) -> Self {
        let words: Vec<&str> = command.split_whitespace().collect();
        let argument = |flag: &str| {
            let at =
                words.iter().position(|word| *word == flag).unwrap_or_else(|| panic!("{flag}: {command}"));
            words[at + 1].to_owned()
        };
        Self {
            server: argument("--server"),
            token: argument("--token"),
            ca_checksum: argument("--ca-checksum"),
            worker: words.contains(&"--worker"),
            labels: argument("--label").trim_matches('\'').to_owned(),
        }
    }
}

/// Runs the script; again and again until the manager answers, as the script does.
pub(crate) async fn run(host: &Arc<MemoryHost>, order: &Order) {
    while let Err(error) = attempt(host, order).await {
        tracing::debug!(error, "not registered yet");
        tokio::time::sleep(RETRY).await;
    }
}

async fn attempt(host: &Arc<MemoryHost>, order: &Order) -> Result<(), String> {
    let cacerts = get(host, order, "/cacerts", tls::Trust::Anything, &[]).await?;
    assert_eq!(order.ca_checksum, hex::encode(Sha256::digest(&cacerts)), "the CA that is pinned");
    let headers = [
        ("authorization", format!("Bearer {}", order.token)),
        ("x-cattle-id", machine_id(host)?),
        ("x-cattle-role-worker", order.worker.to_string()),
        ("x-cattle-labels", order.labels.clone()),
    ];
    let connection = get(host, order, "/v3/connect/agent", tls::Trust::Only(&cacerts), &headers).await?;

    let config = "workDirectory: /var/lib/rancher/agent/work\n\
        appliedPlanDirectory: /var/lib/rancher/agent/applied\n\
        interlockDirectory: /var/lib/rancher/agent/interlock\n\
        imagesDirectory: /var/lib/rancher/agent/images\nremoteEnabled: true\n\
        connectionInfoFile: /var/lib/rancher/agent/rancher2_connection_info.json\n";
    // The configuration last: where it is, the script has done its work.
    for (path, content) in [(CONNECTION, connection.as_ref()), (CONFIG, config.as_bytes())] {
        let path = Path::new(path);
        host.make_dirs(path.parent().unwrap(), 0o700).map_err(|error| error.to_string())?;
        host.replace(path, content, PRIVATE).map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn get(
    host: &Arc<MemoryHost>,
    order: &Order,
    path: &str,
    trust: tls::Trust<'_>,
    headers: &[(&str, String)],
) -> Result<Bytes, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let url = Url::parse(&order.server).map_err(|e| text(&e))?;
    let tls = tls::client_config(trust, None).map_err(|e| text(&e))?;
    let client = Client::new(host.clone(), url, None, Some(tls)).map_err(|e| text(&e))?;
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Full::default()).map_err(|e| text(&e))?;
    let answer = client.send(request).await.map_err(|e| text(&e))?;
    let status = answer.status();
    let body = read_body(answer.into_body(), LIMIT, ANSWER_LIMIT).await.map_err(|e| text(&e))?;
    if status.is_success() { Ok(body) } else { Err(format!("{path}: {status} {body:?}")) }
}

/// Made once and kept before the manager hears of it, so that a second run is the same machine.
fn machine_id(host: &MemoryHost) -> Result<String, String> {
    let path = Path::new("/etc/rancher/agent/cattle-id");
    if let Ok(known) = host.read(path) {
        return String::from_utf8(known).map_err(|error| error.to_string());
    }
    let id = hex::encode(rand::random::<[u8; 31]>());
    host.make_dirs(path.parent().unwrap(), 0o700).map_err(|error| error.to_string())?;
    host.replace(path, id.as_bytes(), PRIVATE).map_err(|error| error.to_string())?;
    Ok(id)
}
