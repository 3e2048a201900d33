//! The install script with a server, in a temporary root, with a `systemctl` that only records its calls.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use common::{
    manager::Server,
    root::{Root, has, one_client_each, said},
};

/// Nothing that could open a tunnel runs either (access#20).
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
async fn arguments_are_checked_before_any_request() {
    let server = Server::start().await;
    let root = Root::new("none");
    for (args, message) in [
        (vec!["--server", &server.url, "--worker"], "--token"),
        (vec!["--token", "t", "--worker"], "--server"),
        (vec!["--server", &server.url, "--token", "t"], "at least one of"),
        (vec!["--frobnicate"], "unknown argument --frobnicate"),
        (vec!["--token"], "argument --token requires a value"),
    ] {
        let output = root.install(&args).await;
        assert!(!output.status.success() && said(&output).contains(message), "{args:?}: {}", said(&output));
    }
    // Without a checksum, a private CA is not trusted.
    let output = root.install(&["-s", &server.url, "-t", "t", "-w"]).await;
    assert!(!output.status.success(), "{}", said(&output));
    assert_eq!(server.paths(), Vec::<String>::new());
}

/// A program that a plan installed next to the agent, which uses a directory next to the agent's.
struct Distribution(std::process::Child);

impl Distribution {
    fn start(root: &Root) -> Self {
        let program = root.at("usr/local/bin/k3s");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Through a shell, because a program that another thread's child process has open for writing cannot be
        // executed.
        Self(Command::new("sh").arg(program).current_dir(root.at("var/lib/rancher/k3s")).spawn().unwrap())
    }

    fn runs(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the distribution was stopped");
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
    assert!(!said(&output).contains(token), "the token is not printed");

    let config = root.read("etc/rancher/agent/config.yaml");
    let var = root.at("var/lib/rancher/agent");
    assert!(config.contains(&format!("workDirectory: {}/work", var.display())), "{config}");
    assert!(config.contains(&format!("connectionInfoFile: {}/rancher2_connection_info.json", var.display())));
    assert!(config.contains("imagesFromServer: false"), "only if the server announces it: {config}");
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

    // Check 39: the second run registers the same machine.
    let output = root.install(&args).await;
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(root.read("etc/rancher/agent/cattle-id"), id);
    // It authenticates with the credential of the first run, which it sends to no other server.
    let proofs = |server: &Server| {
        let requests = server.requests.lock().unwrap();
        let calls = requests.iter().filter(|(path, _)| path == "/v3/connect/agent");
        calls.map(|(_, headers)| headers.get("x-cattle-machine-token").cloned()).collect::<Vec<_>>()
    };
    let [None, Some(proof)] = &proofs(&server)[..] else { panic!("{:?}", proofs(&server)) };
    let connection = root.read("var/lib/rancher/agent/rancher2_connection_info.json");
    assert!(!proof.is_empty() && connection.contains(proof), "{proof}: {connection}");
    assert!(!said(&output).contains(proof.as_str()), "the credential is not printed");
    let other = Server::start().await;
    let output = root
        .install(&["--server", &other.url, "--token", token, "--ca-checksum", &other.checksum(), "--worker"])
        .await;
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(proofs(&other), [None]);

    // Check 40: everything is removed except for files of others, whose programs keep running.
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

/// Only the binary comes from the server, whose CA this system does not know.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_for_local_plans_verifies_the_server_of_its_binary() {
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
    assert!(said(&output).contains("no source for the agent's binary"), "{}", said(&output));
}

/// The proxy does not listen, so every request that arrives bypassed it.
#[tokio::test(flavor = "multi_thread")]
async fn networks_in_no_proxy_are_supported_and_failures_have_a_reason() {
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
fn networks_in_no_proxy_match_exactly_their_addresses() {
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
async fn agent_check_38_a_rejected_token_leaves_nothing() {
    let server = Server::start().await;
    let checksum = server.checksum();
    for without in one_client_each() {
        let root = Root::new(without);
        let output = root.install(&["-s", &server.url, "-t", "expired", "-c", &checksum, "-a"]).await;
        assert!(!output.status.success());
        let said = said(&output);
        assert!(
            said.contains("rejected the token (--token)") && said.contains("nothing was installed"),
            "{said}"
        );
        assert!(!root.at("etc").exists() && !root.at("var").exists() && !root.at("usr").exists());
        assert!(!root.at("systemctl.log").exists());
    }
}

/// A machine that is already registered keeps its identity when a later run is rejected.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_token_keeps_an_earlier_identity() {
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
async fn the_installer_waits_for_a_running_plan() {
    let server = Server::start().await;
    let root = Root::new(if has("wget") { "curl" } else { "wget" });
    let interlock = root.at("var/lib/rancher/agent/interlock");
    std::fs::create_dir_all(&interlock).unwrap();
    std::fs::write(interlock.join("applyinator-active"), "").unwrap();
    let checksum = server.checksum();
    let args = ["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "--no-roles"];
    let (install, ()) = tokio::join!(root.install(&args), async {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !root.so_far().contains("waiting for the running agent to finish its plan") {
            assert!(
                tokio::time::Instant::now() < deadline,
                "timed out waiting for the message: {}",
                root.so_far()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let pending = std::fs::read_to_string(interlock.join("restart-pending")).unwrap();
        let since = drover_agent::unix_date::parse(&pending).expect("the agent starts no other plan");
        let ago = jiff::Timestamp::now().duration_since(since).as_secs();
        assert!((0..300).contains(&ago), "{pending}: so the agent does not rewrite it");
        assert!(!root.at("systemctl.log").exists(), "the agent is not restarted while it works");
        std::fs::remove_file(interlock.join("applyinator-active")).unwrap();
    });
    assert!(install.status.success(), "{}", said(&install));
    assert!(root.read("systemctl.log").contains("restart rancher-system-agent.service"));
    let requests = server.requests.lock().unwrap().clone();
    let (_, headers) = requests.iter().find(|(path, _)| path == "/v3/connect/agent").unwrap();
    assert!(!headers.contains_key("x-cattle-node-name"), "missing options are not sent");
    assert!(!interlock.join("restart-pending").exists());
}

/// A download can be anything, and must not replace a working agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_binary_that_does_not_run_does_not_replace_a_working_agent() {
    let server = Server::start().await;
    let root = Root::new("none");
    let agent = root.at("usr/local/bin/rancher-system-agent");
    std::fs::create_dir_all(agent.parent().unwrap()).unwrap();
    let working = "#!/bin/sh\necho the agent that works\n";
    std::fs::write(&agent, working).unwrap();
    let checksum = server.checksum();
    let args = ["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "-w"];
    let useless = [
        ("page", "<html>log in</html>\n", "is not a program"),
        ("empty", "", "is not a program"),
        ("broken", "#!/bin/sh\nexit 1\n", "does not run"),
    ];
    for (name, page, why) in useless {
        let download = root.at(name);
        std::fs::write(&download, page).unwrap();
        let env = [
            ("NO_PROXY", "127.0.0.1"),
            ("CATTLE_AGENT_BINARY_LOCAL", "true"),
            ("CATTLE_AGENT_BINARY_LOCAL_LOCATION", download.to_str().unwrap()),
        ];
        let output = root.install_with(&env, &args).await;
        assert!(!output.status.success() && said(&output).contains(why), "{}", said(&output));
        assert_eq!(std::fs::read_to_string(&agent).unwrap(), working, "{name}");
        let names: Vec<_> = std::fs::read_dir(agent.parent().unwrap()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{name}: {names:?}");
        assert!(!root.at("systemctl.log").exists(), "{name}");
    }
}

/// Parsed like systemd does: a backslash escapes the next character.
#[tokio::test(flavor = "multi_thread")]
async fn a_backslash_in_a_proxy_reaches_the_agent() {
    let server = Server::start().await;
    let root = Root::new("none");
    let checksum = server.checksum();
    let args = ["-s", &server.url, "-t", "the \"token\"", "-c", &checksum, "-w"];
    let proxy = r"http://corp\new\\user:p@px.example:3128";
    let output = root.install_with(&[("NO_PROXY", "127.0.0.1"), ("HTTP_PROXY", proxy)], &args).await;
    assert!(output.status.success(), "{}", said(&output));
    let file = root.read("etc/systemd/system/rancher-system-agent.env");
    let line = file.lines().find_map(|line| line.strip_prefix("HTTP_PROXY=")).unwrap();
    assert_eq!(line.replace(r"\\", "\u{1}").replace('\\', "").replace('\u{1}', r"\"), proxy, "{file}");
}
