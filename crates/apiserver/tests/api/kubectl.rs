//! The real kubectl with a real socket. Prints that it is skipped if kubectl is not installed.

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

fn installed() -> bool {
    let found = std::process::Command::new("kubectl").arg("help").output().is_ok();
    if !found {
        eprintln!("SKIPPED: kubectl is not installed");
    }
    found
}

/// Every `kubectl create <kind>`: some of them send protobuf.
#[tokio::test]
async fn kubernetes_check_2_kubectl_creates_every_kind_it_can() {
    if !installed() {
        return;
    }
    let server = Server::start().await;
    let kubectl = Kubectl { server: serve(&server).await, home: tempfile::tempdir().unwrap() };
    for line in [
        "ns other",
        "cm c --from-literal=a=b",
        "secret generic s --from-literal=a=b",
        "sa robot",
        "role r --verb=get,list --resource=pods,deployments.apps",
        "clusterrole cr --verb=* --resource=secrets",
        "rolebinding rb --role=r --serviceaccount=default:robot",
        "clusterrolebinding crb --clusterrole=cr --group=people",
        "deployment web --image=web:1 --replicas=2 --port=80",
        "job once --image=busybox -- echo hi",
        "cronjob often --image=busybox --schedule=@hourly -- echo hi",
        "service clusterip svc --tcp=80:8080",
        "service nodeport np --tcp=80",
        "quota q --hard=pods=3,cpu=2",
        "pdb p --selector=app=web --min-available=50%",
        "priorityclass high --value=1000",
        "ingress i --rule=example.com/*=svc:80",
    ] {
        let args: Vec<&str> = std::iter::once("create").chain(line.split(' ')).collect();
        let out = kubectl.run(&args).await;
        assert!(out.contains("created"), "{line}: {out}");
    }
    let check = async |args: &str, expected: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        assert_eq!(kubectl.run(&args).await, expected, "{args:?}");
    };
    check("get secret s -o jsonpath={.data.a}{.type}", "Yg==Opaque").await;
    check("get deploy web -o jsonpath={.spec.replicas}{.spec.template.spec.containers[0].ports[0].containerPort}", "280").await;
    check("get pdb p -o jsonpath={.spec.minAvailable}", "50%").await;
    check("get quota q -o jsonpath={.spec.hard.pods}", "3").await;
    check("get svc svc -o jsonpath={.spec.ports[0].targetPort}", "8080").await;
    check(
        "get job once -o jsonpath={.spec.template.spec.containers[0].command[0]}{.spec.backoffLimit}",
        "echo6",
    )
    .await;
    check("get role r -o jsonpath={.rules[*].resources}", r#"["pods"] ["deployments"]"#).await;
    kubectl.run(&["annotate", "deploy", "web", "a=b"]).await;
    kubectl.run(&["set", "image", "deploy/web", "*=web:2"]).await;
    check(
        "get deploy web -o jsonpath={.spec.template.spec.containers[0].image}{.metadata.generation}",
        "web:22",
    )
    .await;
    kubectl.run(&["delete", "all", "--all", "--wait=false"]).await;
}

#[tokio::test]
async fn kubernetes_check_1_kubectl_applies_gets_watches_patches_waits_and_deletes() {
    if !installed() {
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
