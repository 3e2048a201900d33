//! The real `kubectl` over TLS with a client certificate. Skipped, with a message, if kubectl is not installed.

use crate::harness::{DEADLINE, Setup};
use crate::tls::{Listening, listen};
use drover_apiserver::auth::pki::{Credential, kubeconfig};
use drover_apiserver::storage::SqliteStorage;
use jiff::Timestamp;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

struct Kubectl {
    home: TempDir,
    listening: Listening,
}

struct Output {
    ok: bool,
    text: String,
}

impl Output {
    #[track_caller]
    fn success(self) -> String {
        assert!(self.ok, "{}", self.text);
        self.text
    }

    #[track_caller]
    fn failure(self) -> String {
        assert!(!self.ok, "{}", self.text);
        self.text
    }
}

impl Kubectl {
    async fn start() -> Option<Self> {
        let found = std::process::Command::new("kubectl").arg("version").arg("--client").output();
        if !found.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: kubectl is not installed");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let storage = Arc::new(SqliteStorage::open(&home.path().join("store")).unwrap());
        let listening = listen(Setup::new(storage).start().await).await;
        let admin = listening.cluster.pki.admin(Timestamp::now()).unwrap();
        let this = Self { home, listening };
        this.write_config("config", Credential::ClientCertificate(&admin));
        Some(this)
    }

    fn write_config(&self, file: &str, credential: Credential<'_>) {
        let server = format!("https://{}", self.listening.address);
        let text = kubeconfig("local", &server, self.listening.cluster.pki.ca_pem(), "me", credential);
        std::fs::write(self.home.path().join(file), text).unwrap();
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        self.run_as("config", arguments, "").await
    }

    async fn run_as(&self, config: &str, arguments: &[&str], input: &str) -> Output {
        let path = |name: &str| -> String { Path::new(self.home.path()).join(name).display().to_string() };
        let mut child = tokio::process::Command::new("kubectl")
            .args(arguments)
            .env("KUBECONFIG", path(config))
            .env("HOME", path("home"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = tokio::time::timeout(DEADLINE * 2, child.wait_with_output()).await.unwrap().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Output { ok: output.status.success(), text: text.trim().to_owned() }
    }

    async fn create(&self, manifest: &str) -> String {
        self.run_as("config", &["create", "--validate=false", "-f", "-"], manifest).await.success()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_with_a_client_certificate_lists_its_permissions() {
    let Some(k) = Kubectl::start().await else { return };
    assert_eq!(k.run(&["auth", "can-i", "*", "*"]).await.success(), "yes");
    assert_eq!(k.run(&["auth", "can-i", "create", "pods", "--as=jane"]).await.failure(), "no");
    let who = k.run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await.success();
    assert_eq!(who, "system:admin");
    k.run(&["create", "namespace", "team"]).await.success();
    k.run(&["create", "rolebinding", "b", "--clusterrole=view", "--user=jane", "-n", "team"]).await.success();
    let can = ["auth", "can-i", "list", "configmaps", "--as=jane", "-n", "team"];
    assert_eq!(k.run(&can).await.success(), "yes");
    let listed = k.run(&["auth", "can-i", "--list", "--as=jane", "-n", "team"]).await.success();
    assert!(listed.contains("configmaps"), "{listed}");
    let refused = k.run(&["get", "nodes", "--as=jane"]).await.failure();
    assert!(
        refused.contains(r#"nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope"#),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_create_token_creates_a_token_that_is_valid_until_its_account_is_deleted() {
    let Some(k) = Kubectl::start().await else { return };
    k.run(&["create", "serviceaccount", "robot"]).await.success();
    let token = k.run(&["create", "token", "robot", "--duration=10m"]).await.success();
    k.write_config("robot", Credential::Token(&token));
    let who = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    assert_eq!(k.run_as("robot", &who, "").await.success(), "system:serviceaccount:default:robot");
    let short = k.run(&["create", "token", "robot", "--duration=1m"]).await.failure();
    assert!(short.contains("may not specify a duration less than 10 minutes"), "{short}");
    k.run(&["delete", "serviceaccount", "robot"]).await.success();
    let refused = k.run_as("robot", &["get", "configmaps"], "").await.failure();
    assert!(refused.contains("You must be logged in"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_deletes_namespaces_and_cascades() {
    let Some(k) = Kubectl::start().await else { return };
    k.run(&["create", "namespace", "team"]).await.success();
    k.run(&["create", "configmap", "owner", "-n", "team"]).await.success();
    let uid =
        k.run(&["get", "configmap", "owner", "-n", "team", "-o", "jsonpath={.metadata.uid}"]).await.success();
    let child = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "child", "namespace": "team", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": true},
        ]},
    });
    k.create(&child.to_string()).await;
    k.run(&["delete", "configmap", "owner", "-n", "team", "--cascade=foreground"]).await.success();
    let gone = k.run(&["get", "configmap", "child", "-n", "team"]).await.failure();
    assert!(gone.contains("NotFound"), "{gone}");
    k.run(&["delete", "namespace", "team"]).await.success();
    let gone = k.run(&["get", "namespace", "team"]).await.failure();
    assert!(gone.contains(r#"namespaces "team" not found"#), "{gone}");
    let kept = k.run(&["delete", "namespace", "default"]).await.failure();
    assert!(kept.contains("this namespace may not be deleted"), "{kept}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_shows_why_a_large_object_is_rejected() {
    let Some(k) = Kubectl::start().await else { return };
    let large = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large", "namespace": "default"},
        "data": {"a": "x".repeat(8 << 20)},
    });
    let refused = k.run_as("config", &["create", "-f", "-"], &large.to_string()).await.failure();
    assert!(refused.contains("Request entity too large: limit is 3145728"), "{refused}");
}
