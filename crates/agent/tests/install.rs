//! The install script against a server, into a temporary root, with a `systemctl` that only takes notes.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use common::manager::Server;

struct Root {
    dir: tempfile::TempDir,
    path: String,
}

impl Root {
    /// `without` is a program that the machine does not have.
    fn new(without: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tools = dir.path().join("tools");
        std::fs::create_dir(&tools).unwrap();
        for folder in ["/usr/bin", "/bin", "/usr/sbin", "/sbin"] {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if name != without && name != "systemctl" {
                    let _ = std::os::unix::fs::symlink(entry.path(), tools.join(name));
                }
            }
        }
        let systemctl = tools.join("systemctl");
        std::fs::write(
            &systemctl,
            format!("#!/bin/sh\necho \"$*\" >> {}/systemctl.log\n", dir.path().display()),
        )
        .unwrap();
        std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = tools.to_str().unwrap().to_owned();
        Self { dir, path }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = if nix::unistd::getuid().is_root() {
            Command::new(program)
        } else {
            let mut command = Command::new("unshare");
            command.arg("--map-root-user").arg("--").arg(program);
            command
        };
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("CATTLE_AGENT_CONFIG_DIR", self.at("etc/rancher/agent"))
            .env("CATTLE_AGENT_VAR_DIR", self.at("var/lib/rancher/agent"))
            .env("CATTLE_AGENT_BIN_PREFIX", self.at("usr/local"))
            .env("CATTLE_AGENT_SYSTEMD_DIR", self.at("etc/systemd/system"))
            .env("CATTLE_AGENT_RETRIES", "4")
            .env("CATTLE_AGENT_RETRY_PAUSE", "0");
        command
    }

    async fn install(&self, args: &[&str]) -> Output {
        self.install_with(&[("NO_PROXY", "127.0.0.1")], args).await
    }

    async fn install_with(&self, env: &[(&str, &str)], args: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/system-agent-install.sh");
        let mut command = self.command(Path::new("sh"));
        command.arg(script).args(args).envs(env.iter().copied());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn mode(&self, name: &str) -> u32 {
        std::fs::metadata(self.at(name)).unwrap().permissions().mode() & 0o7777
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Nor does anything that could open a tunnel ever run (access#20).
#[tokio::test(flavor = "multi_thread")]
async fn agent_check_38_a_wrong_ca_checksum_stops_before_anything_is_downloaded() {
    let server = Server::start().await;
    let root = Root::new("none");
    let output = root
        .install(&["--server", &server.url, "--token", "t", "--worker", "--ca-checksum", &"0".repeat(64)])
        .await;
    assert!(!output.status.success());
    assert!(said(&output).contains("nothing was installed"), "{}", said(&output));
    assert_eq!(server.paths(), ["/cacerts"]);
    assert!(!root.at("etc").exists() && !root.at("var").exists() && !root.at("usr").exists());
    assert!(!root.at("systemctl.log").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_checked_before_anything_is_asked() {
    let server = Server::start().await;
    let root = Root::new("none");
    for (args, message) in [
        (vec!["--server", &server.url, "--worker"], "--token"),
        (vec!["--token", "t", "--worker"], "--server"),
        (vec!["--server", &server.url, "--token", "t"], "at least one of"),
        (vec!["--frobnicate"], "unknown argument --frobnicate"),
        (vec!["--token"], "argument --token needs a value"),
    ] {
        let output = root.install(&args).await;
        assert!(!output.status.success() && said(&output).contains(message), "{args:?}: {}", said(&output));
    }
    // Without the checksum of a private authority, nothing is trusted.
    let output = root.install(&["-s", &server.url, "-t", "t", "-w"]).await;
    assert!(!output.status.success(), "{}", said(&output));
    assert_eq!(server.paths(), Vec::<String>::new());
}

/// What plans installed: a program beside the agent's, at work in a folder beside the agent's.
struct Distribution(std::process::Child);

impl Distribution {
    fn start(root: &Root) -> Self {
        let program = root.at("usr/local/bin/k3s");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Through the shell: a program that another thread's child still has open for writing cannot be executed.
        Self(Command::new("sh").arg(program).current_dir(root.at("var/lib/rancher/k3s")).spawn().unwrap())
    }

    fn runs(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the distribution was ended");
    }
}

impl Drop for Distribution {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn install_twice_and_uninstall(without: &str) {
    let server = Server::start().await;
    let root = Root::new(without);
    let checksum = server.checksum();
    let token = "the \"token\"";
    let args = [
        "--server",
        &server.url,
        "--token",
        token,
        "--ca-checksum",
        &checksum,
        "--etcd",
        "--controlplane",
        "-n",
        "node-1",
        "--address",
        "10.1.2.3",
        "-i",
        "10.4.5.6",
        "--label",
        "a=b",
        "-l",
        "c=d",
        "--taints",
        "k=v:NoSchedule",
    ];
    let output = root.install(&args).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(!said(&output).contains(token), "the token is not shown");

    let config = root.read("etc/rancher/agent/config.yaml");
    let var = root.at("var/lib/rancher/agent");
    assert!(config.contains(&format!("workDirectory: {}/work", var.display())), "{config}");
    assert!(config.contains(&format!("connectionInfoFile: {}/rancher2_connection_info.json", var.display())));
    assert!(
        config.contains("imagesFromServer: false"),
        "only where the server says that it has some: {config}"
    );
    for file in [
        "etc/rancher/agent/config.yaml",
        "etc/rancher/agent/cattle-id",
        "var/lib/rancher/agent/rancher2_connection_info.json",
        "etc/systemd/system/rancher-system-agent.env",
    ] {
        assert_eq!(root.mode(file), 0o600, "{file}");
    }
    assert_eq!(root.mode("var/lib/rancher/agent"), 0o700);
    let id = root.read("etc/rancher/agent/cattle-id");
    assert!(id.trim().len() == 63 && id.trim().chars().all(|c| c.is_ascii_hexdigit()), "{id}");
    let unit = root.read("etc/systemd/system/rancher-system-agent.service");
    let binary = root.at("usr/local/bin/rancher-system-agent");
    assert!(unit.contains(&format!("ExecStart={} sentinel", binary.display())), "{unit}");
    for line in ["Restart=always", "RestartSec=5s", "KillMode=mixed", "OOMScoreAdjust=-500", "UMask=0022"] {
        assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
    }
    let environment = root.read("etc/systemd/system/rancher-system-agent.env");
    assert!(environment.contains("NO_PROXY=127.0.0.1"));
    assert_eq!(
        root.read("systemctl.log"),
        "daemon-reload\nenable rancher-system-agent.service\nrestart rancher-system-agent.service\n"
    );
    assert!(!var.join("interlock/restart-pending").exists());
    let (_, headers) =
        server.requests.lock().unwrap().iter().find(|(path, _)| path == "/v3/connect/agent").unwrap().clone();
    for (name, value) in [
        ("x-cattle-id", id.trim()),
        ("x-cattle-role-etcd", "true"),
        ("x-cattle-role-control-plane", "true"),
        ("x-cattle-role-worker", "false"),
        ("x-cattle-node-name", "node-1"),
        ("x-cattle-address", "10.1.2.3"),
        ("x-cattle-internal-address", "10.4.5.6"),
        ("x-cattle-labels", "a=b,c=d"),
        ("x-cattle-taints", "k=v:NoSchedule"),
    ] {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}");
    }

    // Check 39: the second run is the same machine.
    let output = root.install(&args).await;
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(root.read("etc/rancher/agent/cattle-id"), id);

    // Check 40: nothing is left, but what is not ours stays, and goes on running.
    std::fs::create_dir_all(root.at("var/lib/rancher/k3s")).unwrap();
    let mut distribution = Distribution::start(&root);
    let mut uninstall = root.command(&root.at("usr/local/bin/rancher-system-agent-uninstall.sh"));
    let output = tokio::task::spawn_blocking(move || uninstall.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for gone in [
        "etc/rancher/agent",
        "var/lib/rancher/agent",
        "etc/systemd/system/rancher-system-agent.service",
        "etc/systemd/system/rancher-system-agent.env",
        "usr/local/bin/rancher-system-agent",
        "usr/local/bin/rancher-system-agent-uninstall.sh",
    ] {
        assert!(!root.at(gone).exists(), "{gone}");
    }
    assert!(root.at("var/lib/rancher/k3s").exists() && root.at("usr/local/bin/k3s").exists());
    distribution.runs();
    let calls = root.read("systemctl.log");
    assert!(
        calls.contains(
            "stop rancher-system-agent.service\ndisable rancher-system-agent.service\nreset-failed"
        ),
        "{calls}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_39_40_install_twice_and_uninstall_with_curl() {
    assert!(has("curl"), "this test needs curl");
    install_twice_and_uninstall("wget").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_39_40_install_twice_and_uninstall_with_wget() {
    if !has("wget") {
        eprintln!("SKIPPED: wget is not installed");
        return;
    }
    install_twice_and_uninstall("curl").await;
}

/// What the machine lacks, so that each of the clients is used that this one has.
fn one_client_each() -> impl Iterator<Item = &'static str> {
    if !has("wget") {
        eprintln!("SKIPPED: wget is not installed");
    }
    ["wget", "curl"].into_iter().filter(|without| *without == "wget" || has("wget"))
}

/// The binary alone comes from the server, whose authority this system does not know.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_for_local_plans_alone_verifies_the_server_it_comes_from() {
    let server = Server::start().await;
    let (assets, checksum, zeros) = (format!("{}/assets", server.url), server.checksum(), "0".repeat(64));
    let env = |checksum| {
        [
            ("CATTLE_REMOTE_ENABLED", "false"),
            ("CATTLE_LOCAL_ENABLED", "true"),
            ("CATTLE_AGENT_BINARY_BASE_URL", assets.as_str()),
            ("CATTLE_CA_CHECKSUM", checksum),
        ]
    };
    for without in one_client_each() {
        let root = Root::new(without);
        server.requests.lock().unwrap().clear();
        let output = root.install_with(&env(zeros.as_str()), &[]).await;
        assert!(!output.status.success() && said(&output).contains("nothing was installed"));
        assert_eq!(server.paths(), ["/cacerts"]);
        assert!(!root.at("etc").exists() && !root.at("var").exists() && !root.at("usr").exists());

        let output = root.install_with(&env(checksum.as_str()), &[]).await;
        assert!(output.status.success(), "without {without}: {}", said(&output));
        let config = root.read("etc/rancher/agent/config.yaml");
        assert!(
            config.contains("remoteEnabled: false") && !config.contains("connectionInfoFile"),
            "{config}"
        );
        assert!(!server.paths().iter().any(|path| path == "/v3/connect/agent"), "{:?}", server.paths());
    }
    let local_only = [("CATTLE_REMOTE_ENABLED", "false"), ("CATTLE_LOCAL_ENABLED", "true")];
    let output = Root::new("none").install_with(&local_only, &[]).await;
    assert!(said(&output).contains("nowhere to have the agent from"), "{}", said(&output));
}

/// Nobody listens at the proxy, so whatever arrives went past it.
#[tokio::test(flavor = "multi_thread")]
async fn networks_in_no_proxy_are_understood_and_a_failure_has_its_reason() {
    let server = Server::start().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let checksum = server.checksum();
    let args = ["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "-w"];
    for without in one_client_each() {
        let root = Root::new(without);
        let env = |no_proxy| [("HTTPS_PROXY", proxy.as_str()), ("NO_PROXY", no_proxy)];
        server.requests.lock().unwrap().clear();
        let output = root.install_with(&env("10.0.0.0/8,*.example.com,127.0.0.0/33"), &args).await;
        let text = said(&output);
        assert!(!output.status.success() && server.paths().is_empty(), "without {without}: {text}");
        let reason = text.split("giving up: ").nth(1).unwrap_or_default();
        assert!(reason.to_lowercase().contains("connect"), "without {without}: {text}");

        let output = root.install_with(&env("10.0.0.0/8, 127.0.0.0/8"), &args).await;
        assert!(output.status.success(), "without {without}: {}", said(&output));
    }
}

#[test]
fn networks_of_no_proxy_end_where_they_end() {
    let script = drover_agent::INSTALL_SCRIPT.trim_end();
    let functions = script.strip_suffix("main \"$@\"").expect("the script's last line calls main");
    for (url, no_proxy, expected) in [
        ("https://10.1.2.3:8443/x", "10.0.0.0/8", true),
        ("https://10.1.2.3:8443/x", "a.b,10.1.2.0/24,*", true),
        ("https://10.1.2.3", "10.1.2.2/31", true),
        ("https://10.1.2.4", "10.1.2.2/31", false),
        ("https://u@255.255.255.255/", "255.255.255.255/32", true),
        ("https://192.168.0.1", "0.0.0.0/0", true),
        ("https://11.0.0.1", "10.0.0.0/8", false),
        ("https://10.1.2.3", "10.1.2/24, 10.01.2.0/24, 10.1.2.256/24, 10.1.2.0/, /8, 10.1.2.0/024", false),
        ("https://10.1.2.3.example.com", "10.0.0.0/8", false),
        ("https://[fd00::1]:8443", "10.0.0.0/8", false),
        ("https://10.1.2.3", "", false),
    ] {
        let status = Command::new("sh")
            .args(["-c", &format!("{functions}\nin_no_proxy \"$1\""), "install.sh", url])
            .env("no_proxy", no_proxy)
            .status()
            .unwrap();
        assert_eq!(status.success(), expected, "{url} {no_proxy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_38_a_token_that_is_refused_leaves_nothing() {
    let server = Server::start().await;
    let checksum = server.checksum();
    for without in one_client_each() {
        let root = Root::new(without);
        let output = root.install(&["-s", &server.url, "-t", "expired", "-c", &checksum, "-a"]).await;
        assert!(!output.status.success());
        let said = said(&output);
        assert!(
            said.contains("refuses the token (--token)") && said.contains("nothing was installed"),
            "{said}"
        );
        assert!(!root.at("etc").exists() && !root.at("var").exists() && !root.at("usr").exists());
        assert!(!root.at("systemctl.log").exists());
    }
    assert!(!server.paths().iter().any(|path| path.starts_with("/assets")), "{:?}", server.paths());
}

/// A machine that is registered already keeps its identity when a later run is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_does_not_take_an_earlier_identity_away() {
    let server = Server::start().await;
    let root = Root::new("none");
    std::fs::create_dir_all(root.at("etc/rancher/agent")).unwrap();
    std::fs::write(root.at("etc/rancher/agent/cattle-id"), "known\n").unwrap();
    let checksum = server.checksum();
    let output = root.install(&["-s", &server.url, "-t", "expired", "-c", &checksum, "-a"]).await;
    assert!(!output.status.success());
    assert_eq!(root.read("etc/rancher/agent/cattle-id"), "known\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_at_work_is_waited_for() {
    let server = Server::start().await;
    let root = Root::new(if has("wget") { "curl" } else { "wget" });
    let interlock = root.at("var/lib/rancher/agent/interlock");
    std::fs::create_dir_all(&interlock).unwrap();
    std::fs::write(interlock.join("applyinator-active"), "").unwrap();
    let checksum = server.checksum();
    let args = ["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "--no-roles"];
    let (install, watch) = tokio::join!(root.install(&args), async {
        while !interlock.join("restart-pending").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let restarted = root.at("systemctl.log").exists();
        std::fs::remove_file(interlock.join("applyinator-active")).unwrap();
        restarted
    });
    assert!(!watch, "the agent is not restarted while it works");
    assert!(install.status.success(), "{}", said(&install));
    assert!(root.read("systemctl.log").contains("restart rancher-system-agent.service"));
    let requests = server.requests.lock().unwrap().clone();
    let (_, headers) = requests.iter().find(|(path, _)| path == "/v3/connect/agent").unwrap();
    assert!(!headers.contains_key("x-cattle-node-name"), "what was not given is not sent");
    assert!(!interlock.join("restart-pending").exists());
}
