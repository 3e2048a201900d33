//! The registry of the distribution project as a separate process: real login, TLS, mirror and rewrite.

use std::{path::Path, process::Stdio};

use drover_testkit::{eventually_within, images, peer, tls::Authority};
use tokio::process::{Child, Command};

use crate::node::Node;

/// User `u` with the password `correct horse`, as htpasswd -B writes it.
const LOGIN: &str = "u:$2b$05$dy/WZJbLhlUH/AsE4S7GseGTSu1oxPesRd45oeoifWol/hYEC4G7K";

struct Registry {
    _process: Child,
    port: u16,
}

impl Registry {
    async fn start(program: &Path, dir: &Path, authority: &Authority) -> Self {
        let identity = authority.identity();
        std::fs::write(dir.join("cert.pem"), &identity.certificate).unwrap();
        std::fs::write(dir.join("key.pem"), &identity.key).unwrap();
        std::fs::write(dir.join("htpasswd"), LOGIN).unwrap();
        // Port 0; the log contains the actual one.
        let config = serde_json::json!({
            "version": "0.1",
            "log": {"level": "info", "formatter": "json"},
            "storage": {"filesystem": {"rootdirectory": dir.join("data")}},
            "auth": {"htpasswd": {"realm": "test", "path": dir.join("htpasswd")}},
            "http": {
                "addr": "127.0.0.1:0", "secret": "x",
                "tls": {"certificate": dir.join("cert.pem"), "key": dir.join("key.pem")},
            },
        });
        std::fs::write(dir.join("config.yml"), config.to_string()).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let process = Command::new(program)
            .args(["serve".as_ref(), dir.join("config.yml").as_os_str()])
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let port = eventually_within(std::time::Duration::from_secs(60), || {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            let port = log
                .split("listening on 127.0.0.1:")
                .nth(1)
                .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u16>().ok());
            async move { port.ok_or(log) }
        })
        .await;
        Self { _process: process, port }
    }
}

async fn crane(program: &Path, home: &Path, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).env("HOME", home).env("SSL_CERT_FILE", home.join("ca.pem")).kill_on_drop(true);
    let limit = std::time::Duration::from_secs(60);
    let output = tokio::time::timeout(limit, command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "crane {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_32_34_a_real_registry_with_login_tls_mirror_and_rewrite() {
    let (Some(registry), Some(client)) = (peer("tests/peers/registry"), peer("tests/peers/crane")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("distribution");
    let registry = Registry::start(&registry, dir.path(), &authority).await;
    std::fs::write(dir.path().join("ca.pem"), &authority.pem).unwrap();
    let layers =
        [images::layer(&[("k3s", &[7; 3_000_000], 0o755)]), images::layer(&[("run.sh", b"pulled", 0o755)])];
    std::fs::write(dir.path().join("image.tar"), images::docker_save(&["x:1"], &layers)).unwrap();
    let at = format!("localhost:{}", registry.port);
    let archive = dir.path().join("image.tar").display().to_string();
    crane(&client, dir.path(), &["auth", "login", &at, "-u", "u", "-p", "correct horse"]).await;
    crane(&client, dir.path(), &["push", &archive, &format!("{at}/mirrored/x-k3s:v1")]).await;

    let node = Node::new();
    node.write("/etc/ca.pem", &authority.pem);
    let file = |password: &str| {
        format!(
            "mirrors:\n  docker.io:\n    endpoint: [\"https://127.0.0.1:{port}\"]\n    \
             rewrite: {{\"^rancher/(.*)\": \"mirrored/$1\"}}\nconfigs:\n  \"127.0.0.1:{port}\":\n    \
             auth: {{username: u, password: {password}}}\n    tls: {{ca_file: /etc/ca.pem}}\n",
            port = registry.port
        )
    };
    node.registries(&file("wrong"));
    let error = node.stage("rancher/x-k3s:v1").await.unwrap_err();
    assert!(error.contains("401 Unauthorized: the configured credentials were refused"), "{error}");
    node.registries(&file("correct horse"));
    node.stage("rancher/x-k3s:v1").await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("pulled"));
    assert_eq!(node.staged("k3s").map(|text| text.len()), Some(3_000_000));
    let error = node.stage("rancher/x-k3s:v2").await.unwrap_err();
    assert!(error.contains("404 Not Found: the image or tag does not exist (MANIFEST_UNKNOWN:"), "{error}");
    // By digest, which the registry itself returns.
    let output = Command::new(&client)
        .args(["digest", &format!("{at}/mirrored/x-k3s:v1")])
        .env("HOME", dir.path())
        .env("SSL_CERT_FILE", dir.path().join("ca.pem"))
        .output()
        .await
        .unwrap();
    let digest = String::from_utf8(output.stdout).unwrap();
    node.stage(&format!("rancher/x-k3s@{}", digest.trim())).await.unwrap();
    assert_eq!(node.staged("run.sh").as_deref(), Some("pulled"));
}
