//! The options of the install script, and special servers and machines.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{
    path::Path,
    process::{Command, Output},
};

use common::{
    manager::Server,
    root::{Root, one_client_each, said},
};

const TOKEN: &str = "the \"token\"";
const AGENT: &str = "usr/local/bin/rancher-system-agent";
const UNINSTALLER: &str = "usr/local/bin/rancher-system-agent-uninstall.sh";
const CONNECTION: &str = "var/lib/rancher/agent/rancher2_connection_info.json";
const REGISTRATION: &str = "/v3/connect/agent";

/// Installs a worker of this server, with additional environment and arguments.
async fn install(server: &Server, root: &Root, env: &[(&str, &str)], more: &[&str]) -> Output {
    let checksum = server.checksum();
    let args = ["-s", &server.url, "-t", TOKEN, "-c", &checksum, "-w"];
    let env = [&[("NO_PROXY", "127.0.0.1")], env].concat();
    root.install_with(&env, &[&args, more].concat()).await
}

fn assert_installed(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

fn assert_refused(output: &Output, why: &[&str]) {
    let said = said(output);
    assert!(!output.status.success() && said.contains("[FATAL]"), "{said}");
    assert!(why.iter().all(|why| said.contains(why)), "{why:?}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_options_are_rejected_before_any_request() {
    let server = Server::start().await;
    let root = Root::new("none");
    let args = ["-s", &server.url, "-t", TOKEN, "-w"];
    let both = [("CATTLE_REMOTE_ENABLED", "false"), ("CATTLE_LOCAL_ENABLED", "false")];
    for (env, why) in [
        (&both[..], "both false"),
        (&[("CATTLE_AGENT_STRICT_VERIFY", "true")], "--ca-checksum"),
        (&[("STRICT_VERIFY", "true")], "--ca-checksum"),
        (&[("CATTLE_PRESERVE_WORKDIR", "1; rm")], "must be true or false"),
        (&[("CATTLE_AGENT_ARCH", "riscv64")], "not supported"),
    ] {
        assert_refused(&root.install_with(env, &args).await, &[why]);
        assert!(root.is_untouched(), "{env:?}");
    }
    assert_eq!(server.paths(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interface_name_is_replaced_by_its_address() {
    let server = Server::start().await;
    if !Path::new("/sys/class/net/lo").exists() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("SKIPPED: ip or a loopback interface is missing");
        return;
    }
    let root = Root::new("none");
    let output = install(&server, &root, &[], &["--address", "lo", "-i", "no-such-interface"]).await;
    assert_installed(&output);
    let headers = server.headers(REGISTRATION);
    assert_eq!(headers["x-cattle-address"], "127.0.0.1");
    assert_eq!(headers["x-cattle-internal-address"], "no-such-interface");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interface_without_an_address_is_rejected_by_name() {
    let server = Server::start().await;
    let root = Root::new("ip");
    // It finds every interface, but no address.
    root.program("ip", "exit 0");
    let output = install(&server, &root, &[], &["--address", "dummy0"]).await;
    assert_refused(&output, &["--address dummy0: no address found"]);
    assert!(root.is_untouched() && server.count(REGISTRATION) == 0);
}

/// The services have fixed addresses, so the client is simulated and records its requests.
#[tokio::test(flavor = "multi_thread")]
async fn keywords_ask_the_metadata_service_of_their_cloud() {
    let script = drover_agent::INSTALL_SCRIPT.trim_end();
    let functions = script.strip_suffix("main \"$@\"").expect("the script's last line calls main");
    let root = Root::new("none");
    let note = r#"
        while [ $# -gt 1 ]; do
            case "$1" in
            -o) out=$2 && shift ;;
            --config) cat "$2" && shift ;;
            esac
            shift
        done
        echo "$1"
        [ "$1" = "$REFUSED" ] && exit 22
        printf 10.9.8.7 > "$out""#;
    root.program("curl", &format!("{{ {note}\n}} >> {}", root.at("asked").display()));
    let aws = "http://169.254.169.254/latest/meta-data";
    let digital = "http://169.254.169.254/metadata/v1/interfaces";
    let azure = "http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0";
    let google = "http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0";
    let packet = "https://metadata.packet.net/2009-04-04/meta-data";
    let text = "?api-version=2017-08-01&format=text";
    let (for_azure, for_google) = ("header = \"Metadata: true\"\n", "header = \"Metadata-Flavor: Google\"\n");
    for (keyword, header, url) in [
        ("awslocal", "", format!("{aws}/local-ipv4")),
        ("awspublic", "", format!("{aws}/public-ipv4")),
        ("doprivate", "", format!("{digital}/private/0/ipv4/address")),
        ("dopublic", "", format!("{digital}/public/0/ipv4/address")),
        ("azprivate", for_azure, format!("{azure}/privateIpAddress{text}")),
        ("azpublic", for_azure, format!("{azure}/publicIpAddress{text}")),
        ("gceinternal", for_google, format!("{google}/ip")),
        ("gceexternal", for_google, format!("{google}/access-configs/0/external-ip")),
        ("packetlocal", "", format!("{packet}/local-ipv4")),
        ("packetpublic", "", format!("{packet}/public-ipv4")),
        ("ipify", "", "https://api.ipify.org".to_owned()),
    ] {
        let resolve = |refused: &str| {
            let _ = std::fs::remove_file(root.at("asked"));
            let rest = "setup_client; resolve_addresses; echo \"= $CATTLE_ADDRESS $CATTLE_INTERNAL_ADDRESS\"";
            let output = root
                .command(Path::new("sh"))
                .args(["-c", &format!("{functions}\n{rest}")])
                .env("CATTLE_ADDRESS", keyword)
                .env("CATTLE_INTERNAL_ADDRESS", keyword)
                .env("REFUSED", refused)
                .output();
            (output.unwrap(), root.read("asked"))
        };
        let (output, asked) = resolve("");
        assert!(said(&output).contains("= 10.9.8.7 10.9.8.7"), "{keyword}: {}", said(&output));
        assert_eq!(asked, format!("{header}{url}\n").repeat(2), "{keyword}");
        assert_refused(&resolve(&url).0, &[&format!("--address {keyword}: no address found")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_with_a_wrong_checksum_is_never_installed() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_drover-agent")).unwrap();
    let (right, wrong) = (drover_plan::checksum(&binary), "0".repeat(64));
    for without in one_client_each() {
        let server = Server::start().await;
        let root = Root::new(without);
        // An existing agent is not changed.
        std::fs::create_dir_all(root.at("usr/local/bin")).unwrap();
        std::fs::write(root.at(AGENT), "an earlier one").unwrap();
        let output = install(&server, &root, &[("CATTLE_AGENT_BINARY_CHECKSUM", &wrong)], &[]).await;
        assert_refused(&output, &[&right, &wrong]);
        assert_eq!(root.read(AGENT), "an earlier one", "without {without}");
        assert_eq!(std::fs::read_dir(root.at("usr/local/bin")).unwrap().count(), 1, "without {without}");
        assert!(!root.at("systemctl.log").exists() && !root.at(CONNECTION).exists(), "without {without}");
        assert_eq!(server.count("/v3/connect/agent"), 0, "the machine was not registered");

        let output = install(&server, &root, &[("CATTLE_AGENT_BINARY_CHECKSUM", &right)], &[]).await;
        assert_installed(&output);
        assert!(std::fs::read(root.at(AGENT)).unwrap() == binary, "without {without}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uninstall_script_can_come_from_another_source() {
    let server = Server::start().await;
    let root = Root::new("none");
    assert_installed(&install(&server, &root, &[], &[]).await);
    assert!(root.read(UNINSTALLER).contains("uninstall \"$@\""));
    let theirs = root.at("theirs.sh");
    std::fs::write(&theirs, "#!/bin/sh\necho theirs\n").unwrap();
    let local = [
        ("CATTLE_AGENT_UNINSTALL_LOCAL", "true"),
        ("CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION", theirs.to_str().unwrap()),
        ("CATTLE_AGENT_UNINSTALL_CHECKSUM", &"0".repeat(64)),
    ];
    assert_refused(&install(&server, &root, &local, &[]).await, &["the uninstall script has checksum"]);
    assert!(!root.read(UNINSTALLER).contains("theirs"), "the working one is kept");
    assert_installed(&install(&server, &root, &local[..2], &[]).await);
    assert!(root.read(UNINSTALLER).contains("theirs"));
}

/// Both the one that the installer writes and the one that other installers download from the server.
#[tokio::test(flavor = "multi_thread")]
async fn an_uninstaller_removes_the_agent_and_itself_only_on_uninstall() {
    let server = Server::start().await;
    let asset = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/system-agent-uninstall.sh");
    let fetched = [
        ("CATTLE_AGENT_UNINSTALL_LOCAL", "true"),
        ("CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION", asset.to_str().unwrap()),
    ];
    for env in [&[][..], &fetched] {
        let root = Root::new("none");
        assert_installed(&install(&server, &root, env, &[]).await);
        for (argument, succeeds) in [("--help", true), ("--nonsense", false)] {
            let mut command = root.command(&root.at(UNINSTALLER));
            command.arg(argument);
            let output = root.run(command).await;
            assert_eq!(output.status.success(), succeeds, "{argument}: {}", said(&output));
            assert!(root.at(AGENT).exists() && root.at(UNINSTALLER).exists(), "{env:?} {argument}");
        }
        // Called from its own directory, without the installer's variables.
        let mut command = root.command(Path::new("sh"));
        command.args(["-c", "cd usr/local/bin && ./rancher-system-agent-uninstall.sh"]);
        command.current_dir(root.dir.path()).env_remove("CATTLE_AGENT_BIN_PREFIX").env("CDPATH", "/usr");
        let output = root.run(command).await;
        assert!(output.status.success(), "{env:?}: {}", said(&output));
        assert!(!root.at(AGENT).exists() && !root.at(UNINSTALLER).exists(), "{env:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_can_come_from_another_source_only() {
    let server = Server::start().await;
    let root = Root::new("none");
    let url = format!("{}/mirror/agent", server.url);
    let output = install(&server, &root, &[("CATTLE_AGENT_BINARY_URL", &url)], &[]).await;
    assert_installed(&output);
    assert_eq!(server.count("/mirror/agent"), 1);
    assert!(!server.paths().iter().any(|path| path.starts_with("/assets")), "{:?}", server.paths());

    let root = Root::new("none");
    let before = server.paths().len();
    let local = [
        ("CATTLE_AGENT_BINARY_LOCAL", "true"),
        ("CATTLE_AGENT_BINARY_LOCAL_LOCATION", env!("CARGO_BIN_EXE_drover-agent")),
    ];
    assert_installed(&install(&server, &root, &local, &[]).await);
    let asked = server.paths().split_off(before);
    assert!(asked.iter().all(|path| !path.contains("/assets") && !path.contains("/mirror")), "{asked:?}");
    assert_refused(&install(&server, &root, &local[..1], &[]).await, &["CATTLE_AGENT_BINARY_LOCAL_LOCATION"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_identity_is_sent_and_kept_and_the_work_directory_can_be_preserved() {
    let server = Server::start().await;
    let root = Root::new("none");
    let env = [("CATTLE_ID", "given-by-the-cloud"), ("CATTLE_PRESERVE_WORKDIR", "true")];
    assert_installed(&install(&server, &root, &env, &[]).await);
    assert_eq!(server.headers(REGISTRATION)["x-cattle-id"], "given-by-the-cloud");
    assert_eq!(root.read("etc/rancher/agent/cattle-id"), "given-by-the-cloud\n");
    assert!(root.read("etc/rancher/agent/config.yaml").contains("\npreserveWorkDirectory: true\n"));
    // The identity is kept without the option; the other option is not.
    server.requests.lock().unwrap().clear();
    assert_installed(&install(&server, &root, &[], &[]).await);
    assert_eq!(server.headers(REGISTRATION)["x-cattle-id"], "given-by-the-cloud");
    assert!(root.read("etc/rancher/agent/config.yaml").contains("\npreserveWorkDirectory: false\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_server_that_is_not_ready_are_retried() {
    let server = Server::start().await;
    for without in one_client_each() {
        let root = Root::new(without);
        server.requests.lock().unwrap().clear();
        for path in ["/cacerts", REGISTRATION, "/assets/rancher-system-agent-amd64"] {
            server.answer_instead(path, 2, 503, "not yet");
        }
        let output = install(&server, &root, &[], &[]).await;
        assert_installed(&output);
        assert_eq!((server.count("/cacerts"), server.count(REGISTRATION)), (3, 3), "without {without}");
        let said = said(&output);
        assert_eq!(said.matches("retrying every").count(), if cfg!(target_arch = "x86_64") { 3 } else { 2 });
        assert!(said.contains("503"), "without {without}: the reason is printed: {said}");

        // Not forever.
        let root = Root::new(without);
        server.answer_instead(REGISTRATION, 4, 503, "not yet");
        let output = install(&server, &root, &[], &[]).await;
        assert_refused(&output, &["registering with", "failed 4 times, giving up", "503"]);
        assert!(!root.at("usr").exists() && !root.at("systemctl.log").exists(), "without {without}");
    }
}

/// Like a proxy with a login page.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_instead_of_the_connection_is_rejected() {
    let server = Server::start().await;
    let page = "<html>log in</html>";
    for without in one_client_each() {
        let root = Root::new(without);
        server.answer_instead(REGISTRATION, 2, 200, page);
        assert_installed(&install(&server, &root, &[], &[]).await);
        assert!(root.read(CONNECTION).contains("kubeConfig"), "without {without}");
        let before = root.read(CONNECTION);

        // An existing connection is kept.
        std::fs::remove_file(root.at("systemctl.log")).unwrap();
        server.answer_instead(REGISTRATION, 5, 200, page);
        let output = install(&server, &root, &[], &[]).await;
        assert_refused(&output, &["registering with", "giving up", "connection.json"]);
        assert_eq!(root.read(CONNECTION), before, "without {without}");
        assert!(!root.at("systemctl.log").exists(), "without {without}: the agent is not changed");
        assert!(!root.at("var/lib/rancher/agent/interlock/restart-pending").exists(), "without {without}");
    }
}

/// On systems where `/usr/local` is a separate mount or read-only.
#[tokio::test(flavor = "multi_thread")]
async fn without_usr_local_the_agent_is_installed_in_opt_and_in_its_path() {
    let server = Server::start().await;
    let checksum = server.checksum();
    for mounts in ["mount -t tmpfs none /usr/local", "mount --bind /usr /usr; mount -o remount,bind,ro /usr"]
    {
        let root = Root::new("none");
        let mut command = Command::new("unshare");
        command.args((!nix::unistd::getuid().is_root()).then_some("--map-root-user")).args(["--mount", "--"]);
        // The host's own /opt is not changed; its content is copied out of the namespace.
        let script = format!(
            "{mounts}; mount -t tmpfs none /opt; test $# -gt 0 || exit 0
             sh {} \"$@\"; status=$?; cp -a /opt {}; exit $status",
            Root::script().display(),
            root.at("opt").display()
        );
        command.args(["sh", "-ec", &script, "install.sh"]).env_clear();
        for (name, value) in root.command(Path::new("sh")).get_envs() {
            if let Some(value) = value.filter(|_| name != "CATTLE_AGENT_BIN_PREFIX") {
                command.env(name, value);
            }
        }
        if !command.output().is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: this host does not permit creating a mount namespace");
            return;
        }
        command.args(["-s", &server.url, "-t", TOKEN, "-c", &checksum, "-w"]);
        let output = root.run(command).await;
        assert!(output.status.success(), "{mounts}: {}", said(&output));
        let bin = "opt/rancher-system-agent/bin";
        assert_eq!(root.mode(&format!("{bin}/rancher-system-agent")), 0o755, "{mounts}");
        assert_eq!(root.mode(&format!("{bin}/rancher-system-agent-uninstall.sh")), 0o755, "{mounts}");
        let unit = root.read("etc/systemd/system/rancher-system-agent.service");
        assert!(
            unit.contains(&format!("\nExecStart=/{bin}/rancher-system-agent sentinel\n")),
            "{mounts}: {unit}"
        );
        let environment = root.read("etc/systemd/system/rancher-system-agent.env");
        assert_eq!(environment, format!("PATH={}:/{bin}\n", root.path), "{mounts}");
    }
}
