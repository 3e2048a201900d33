//! A real Kubernetes API: etcd, kube-apiserver and kube-controller-manager, built from their Go modules, on loopback
//! and in their own directory. It stops when the value is dropped.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::tls::Authority;

/// The token of an administrator: `admin`, in the group `system:masters`.
pub const ADMIN: &str = "token-of-admin";
/// The token of a user without permissions: `alice`, in the group `people`.
pub const ALICE: &str = "token-of-alice";

const READY_LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
const ATTEMPTS: usize = 3;

/// A running API.
pub struct Kubernetes {
    pub url: String,
    /// PEM of its CA.
    pub ca: String,
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Kubernetes {
    /// Starts all three and waits until the API is ready. `None`, with a note on stderr, if Go is missing.
    pub fn start() -> Option<Self> {
        let etcd = crate::peer("tests/peers/etcd")?;
        let kubernetes = crate::peer("tests/peers/kubernetes")?;
        // None of them supports port 0, so a port is chosen here, and another program may take it.
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match Self::attempt(&etcd, &kubernetes) {
                Ok(started) => return Some(started),
                Err(error) => why = error,
            }
        }
        panic!("Kubernetes does not start: {why}");
    }

    fn attempt(etcd: &Path, kubernetes: &Path) -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("drover-kubernetes-").tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            path(name)
        };
        let authority = Authority::new("kubernetes");
        let serving = authority.identity();
        let accounts = rcgen::KeyPair::generate().unwrap();
        let ca = write("ca.crt", &authority.pem);
        let (certificate, key) =
            (write("serving.crt", &serving.certificate), write("serving.key", &serving.key));
        let signing = write("accounts.key", &accounts.serialize_pem());
        let verifying = write("accounts.pub", &accounts.public_key_pem());
        let tokens = format!("{ADMIN},admin,1,\"system:masters\"\n{ALICE},alice,2,\"people\"\n");
        let tokens = write("tokens.csv", &tokens);

        let (store, port) = (format!("http://127.0.0.1:{}", free_port()), free_port());
        let url = format!("https://127.0.0.1:{port}");
        let mut started = Self { url, ca: authority.pem, dir, children: vec![] };
        let admin = started.dir.path().join("admin.kubeconfig");
        std::fs::write(&admin, started.kubeconfig(ADMIN)).unwrap();
        // The data need not survive a power loss, so nothing is synced.
        let peers = format!("http://127.0.0.1:{}", free_port());
        let words = [
            "--unsafe-no-fsync".to_owned(),
            format!("--data-dir={}", started.dir.path().join("etcd").display()),
            format!("--listen-client-urls={store}"),
            format!("--advertise-client-urls={store}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
        ];
        started.run("etcd", etcd, &words);
        let words = [
            "kube-apiserver".to_owned(),
            format!("--etcd-servers={store}"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", started.dir.path().join("certs").display()),
            format!("--tls-cert-file={certificate}"),
            format!("--tls-private-key-file={key}"),
            format!("--service-account-key-file={verifying}"),
            format!("--service-account-signing-key-file={signing}"),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--token-auth-file={tokens}"),
            "--authorization-mode=RBAC".into(),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
        ];
        started.run("kube-apiserver", kubernetes, &words);
        let words = [
            "kube-controller-manager".to_owned(),
            format!("--kubeconfig={}", admin.display()),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            format!("--service-account-private-key-file={signing}"),
            format!("--root-ca-file={ca}"),
        ];
        started.ready(&admin)?;
        started.run("kube-controller-manager", kubernetes, &words);
        Ok(started)
    }

    /// A kubeconfig for this API with a token.
    pub fn kubeconfig(&self, token: &str) -> String {
        kubeconfig(&self.url, &self.ca, token)
    }

    /// The last output of one of the programs, for messages.
    pub fn log_tail(&self, program: &str) -> String {
        let log = std::fs::read_to_string(self.log(program)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn log(&self, program: &str) -> PathBuf {
        self.dir.path().join(format!("{program}.log"))
    }

    fn run(&mut self, name: &str, program: &Path, words: &[String]) {
        let log = File::create(self.log(name)).unwrap();
        // A test that is killed cannot stop its processes, so the kernel does.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(words)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.push(child);
    }

    fn ready(&mut self, admin: &Path) -> Result<(), String> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let asked = Command::new("kubectl")
                .arg("--kubeconfig")
                .arg(admin)
                .args(["get", "--raw", "/readyz"])
                .output()
                .map_err(|error| format!("kubectl: {error}"))?;
            if asked.status.success() {
                return Ok(());
            }
            let ended = self.children.iter_mut().any(|child| child.try_wait().unwrap().is_some());
            if ended || Instant::now() > deadline {
                return Err(format!("{}\n{}", self.log_tail("etcd"), self.log_tail("kube-apiserver")));
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A kubeconfig for any API with a token.
pub fn kubeconfig(url: &str, ca: &str, token: &str) -> String {
    // JSON is valid YAML.
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": STANDARD.encode(ca)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
