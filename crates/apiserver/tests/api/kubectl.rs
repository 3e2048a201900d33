//! Real kubectl against a real socket. Skipped, loudly, where kubectl is not installed.

use std::process::{Output, Stdio};
use std::sync::Arc;

use drover_apiserver::storage::SqliteStorage;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::harness::{DEADLINE, Server};

struct Kubectl {
    server: String,
    home: tempfile::TempDir,
}

impl Kubectl {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(["--server", &self.server, "--cache-dir"])
            .arg(self.home.path().join("cache"))
            .args(args);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path());
        command.env("KUBECONFIG", self.home.path().join("none")).kill_on_drop(true).stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> String {
        let output = tokio::time::timeout(DEADLINE, self.command(args).output()).await.unwrap().unwrap();
        check(args, &output)
    }

    async fn feed(&self, args: &[&str], input: &str) -> String {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
        check(args, &output)
    }
}

#[track_caller]
fn check(args: &[&str], output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "kubectl {args:?}\n{out}\n{err}");
    out.into_owned()
}

async fn serve(server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let service = server.api.service();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

const MANIFEST: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: demo}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: demo, labels: {app: demo}}
data: {colour: red}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: demo}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: 'web:1'}]}
";

#[tokio::test]
async fn kubernetes_check_1_kubectl_applies_gets_watches_patches_waits_and_deletes() {
    if std::process::Command::new("kubectl").arg("help").output().is_err() {
        eprintln!("SKIPPED: kubectl is not installed, so nothing is proved about it here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::over(Arc::new(SqliteStorage::open(dir.path()).unwrap())).await;
    let kubectl = Kubectl { server: serve(&server).await, home: tempfile::tempdir().unwrap() };

    assert!(kubectl.run(&["version"]).await.contains("v1.36"));
    assert!(kubectl.run(&["api-resources"]).await.contains("deployments"));
    let first = kubectl.feed(&["apply", "-f", "-"], MANIFEST).await;
    assert!(first.contains("deployment.apps/web created"), "{first}");
    let second = kubectl.feed(&["apply", "-f", "-"], MANIFEST).await;
    assert_eq!(second.matches("unchanged").count(), 3, "{second}");
    let server_side = kubectl.feed(&["apply", "--server-side", "-f", "-"], MANIFEST).await;
    assert_eq!(server_side.matches("serverside-applied").count(), 3, "{server_side}");
    let changed = kubectl.feed(&["apply", "-f", "-"], &MANIFEST.replace("red", "blue")).await;
    assert!(changed.contains("configmap/settings configured"), "{changed}");

    let demo = |args: &[&'static str]| -> Vec<&'static str> { [&["-n", "demo"], args].concat() };
    let table = kubectl.run(&demo(&["get", "cm,deploy", "-l", "app!=none"])).await;
    assert!(table.contains("configmap/settings") && table.contains("deployment.apps/web"), "{table}");
    let colour = kubectl.run(&demo(&["get", "cm", "settings", "-o", "jsonpath={.data.colour}"])).await;
    assert_eq!(colour, "blue");
    kubectl.run(&demo(&["scale", "deploy", "web", "--replicas=4"])).await;
    kubectl
        .run(&demo(&[
            "patch",
            "cm",
            "settings",
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/data/a","value":"b"}]"#,
        ]))
        .await;
    kubectl.run(&demo(&["patch", "cm", "settings", "--type=merge", "-p", r#"{"data":{"a":"c"}}"#])).await;
    kubectl
        .run(&demo(&[
            "patch",
            "deploy",
            "web",
            "-p",
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}"#,
        ]))
        .await;
    kubectl.run(&demo(&["label", "cm", "settings", "tier=one"])).await;
    let described = kubectl.run(&demo(&["describe", "deploy", "web"])).await;
    assert!(described.contains("web:2"), "{described}");

    let mut watch =
        kubectl.command(&demo(&["get", "cm", "-w", "-o", "name"])).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next =
        async || tokio::time::timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert_eq!(next().await, "configmap/settings");
    kubectl.run(&demo(&["create", "cm", "late", "--from-literal=a=b"])).await;
    assert_eq!(next().await, "configmap/late");
    watch.kill().await.unwrap();

    let waited = demo(&["wait", "deploy/web", "--for=jsonpath={.spec.replicas}=4", "--timeout=10s"]);
    assert!(kubectl.run(&waited).await.contains("condition met"));
    let gone = kubectl.run(&demo(&["delete", "cm", "--all"])).await;
    assert_eq!(gone.matches("deleted").count(), 2, "{gone}");
    kubectl.run(&demo(&["delete", "deploy", "web", "--wait=true", "--cascade=background"])).await;
    let left = kubectl.run(&demo(&["get", "cm,deploy", "-o", "name"])).await;
    assert_eq!(left, "");
}
