//! Replaces the install script: registers the machine and writes the configuration of its agent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drover_agent::host::{Attr, Host, MemoryHost};
use drover_agent::http::{Client, Url, read_body, tls};
use http::Request;
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The agent's configuration. If it exists, the script has completed.
pub(crate) const CONFIG: &str = "/etc/rancher/agent/config.yaml";
const CONNECTION: &str = "/var/lib/rancher/agent/rancher2_connection_info.json";
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// The script's time limit of one attempt.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: usize = 1 << 20;
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const PRIVATE: Attr = Attr { mode: 0o600, owner: None };
const AGENT_CONFIG: &str = "workDirectory: /var/lib/rancher/agent/work\n\
    appliedPlanDirectory: /var/lib/rancher/agent/applied\n\
    interlockDirectory: /var/lib/rancher/agent/interlock\n\
    imagesDirectory: /var/lib/rancher/agent/images\nremoteEnabled: true\n\
    connectionInfoFile: /var/lib/rancher/agent/rancher2_connection_info.json\n";

/// The inputs of the script: how the machine registers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registration {
    server: String,
    token: String,
    ca_checksum: String,
    worker: bool,
    labels: String,
}

impl Registration {
    /// Reads the variables at the beginning of a machine's script. The error names a missing one.
    pub fn from_script(script: &str) -> Result<Self, String> {
        let variable = |name: &str| {
            let found = script
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'));
            found.map(str::to_owned).ok_or_else(|| format!("the install script does not set {name}"))
        };
        Ok(Self {
            server: variable("CATTLE_SERVER")?,
            token: variable("CATTLE_TOKEN")?,
            ca_checksum: variable("CATTLE_CA_CHECKSUM")?,
            worker: false,
            labels: String::new(),
        })
    }

    /// Reads the arguments of the command that a user runs on a custom machine.
    pub fn from_command(command: &str) -> Result<Self, String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let argument = |flag: &str| {
            let at = words.iter().position(|word| *word == flag);
            let value = at.and_then(|at| words.get(at + 1)).map(|word| (*word).to_owned());
            value.ok_or_else(|| format!("the registration command has no {flag}"))
        };
        Ok(Self {
            server: argument("--server")?,
            token: argument("--token")?,
            ca_checksum: argument("--ca-checksum")?,
            worker: words.contains(&"--worker"),
            labels: argument("--label")?.trim_matches('\'').to_owned(),
        })
    }
}

/// Runs the script. Like the script, retries until the manager answers.
pub(crate) async fn run(host: &Arc<MemoryHost>, registration: &Registration) {
    let mut pause = RETRY;
    let limited = || async {
        let attempt = tokio::time::timeout(ATTEMPT_LIMIT, attempt(host, registration)).await;
        attempt.unwrap_or_else(|_| Err("timed out".to_owned()))
    };
    while let Err(error) = limited().await {
        tracing::debug!(error, "failed to register, retrying");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_RETRY);
    }
}

async fn attempt(host: &Arc<MemoryHost>, registration: &Registration) -> Result<(), String> {
    let cacerts = get(host, registration, "/cacerts", tls::Trust::Anything, &[]).await?;
    let found = hex::encode(Sha256::digest(&cacerts));
    if registration.ca_checksum != found {
        return Err(format!(
            "the CA of {} has checksum {found}, not {}",
            registration.server, registration.ca_checksum
        ));
    }
    let headers = [
        ("authorization", format!("Bearer {}", registration.token)),
        ("x-cattle-id", machine_id(host)?),
        ("x-cattle-role-worker", registration.worker.to_string()),
        ("x-cattle-labels", registration.labels.clone()),
    ];
    let connection =
        get(host, registration, "/v3/connect/agent", tls::Trust::Only(&cacerts), &headers).await?;
    // The configuration is written last.
    for (path, content) in [(CONNECTION, connection.as_ref()), (CONFIG, AGENT_CONFIG.as_bytes())] {
        write(host, Path::new(path), content)?;
    }
    Ok(())
}

fn write(host: &MemoryHost, path: &Path, content: &[u8]) -> Result<(), String> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    host.make_dirs(parent, 0o700).map_err(|error| error.to_string())?;
    host.replace(path, content, PRIVATE).map_err(|error| error.to_string())
}

async fn get(
    host: &Arc<MemoryHost>,
    registration: &Registration,
    path: &str,
    trust: tls::Trust<'_>,
    headers: &[(&str, String)],
) -> Result<Bytes, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let url = Url::parse(&registration.server).map_err(|e| text(&e))?;
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

/// Generated once and stored before it is sent, so that a second run registers the same machine.
fn machine_id(host: &MemoryHost) -> Result<String, String> {
    let path = Path::new("/etc/rancher/agent/cattle-id");
    if let Ok(known) = host.read(path) {
        return String::from_utf8(known).map_err(|error| error.to_string());
    }
    let id = hex::encode(rand::random::<[u8; 31]>());
    write(host, path, id.as_bytes())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_missing_variable_or_argument() {
        let script = "CATTLE_SERVER=\"https://s\"\nCATTLE_TOKEN=\"t\"\nCATTLE_CA_CHECKSUM=\"c\"\n";
        assert_eq!(Registration::from_script(script).unwrap().server, "https://s");
        let error = Registration::from_script("CATTLE_SERVER=\"https://s\"\n").unwrap_err();
        assert!(error.contains("CATTLE_TOKEN"), "{error}");
        let error = Registration::from_command("curl | sh -s - --server https://s --token").unwrap_err();
        assert!(error.contains("--token"), "{error}");
    }
}
