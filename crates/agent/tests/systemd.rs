//! Install, reboot, upgrade and uninstall on a Debian booted with systemd.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod common;

use std::{fs, path::Path};

use common::{Api, manager::Server, nspawn::Container, sum};
use serde_json::json;

const UNIT: &str = "rancher-system-agent.service";

fn shell(script: &str) -> String {
    json!({"instructions": [{"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true}]})
        .to_string()
}

struct Host {
    container: Container,
    server: Server,
    api: Api,
}

impl Host {
    fn boot() -> Option<Self> {
        let (container, listener) = match Container::boot() {
            Ok(booted) => booted,
            Err(why) => {
                eprintln!("\n*** SKIPPED: no test of the agent under a real systemd: {why} ***\n");
                return None;
            }
        };
        let binary = container.root().join("srv/drover-agent");
        fs::copy(env!("CARGO_BIN_EXE_drover-agent"), &binary).unwrap();
        if !container.shell("/srv/drover-agent --version").status.success() {
            eprintln!(
                "\n*** SKIPPED: the agent that was built here does not run on the container's C library ***\n"
            );
            return None;
        }
        fs::remove_file(binary).unwrap();
        let api = Api::new();
        let server = Server::on(tokio::net::TcpListener::from_std(listener).unwrap(), api.clone());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/system-agent-install.sh");
        fs::copy(script, container.root().join("srv/install.sh")).unwrap();
        Some(Self { container, server, api })
    }

    async fn run(&self, line: &str) -> String {
        let output = tokio::task::block_in_place(|| self.container.shell(line));
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {said}");
        said.trim().to_owned()
    }

    async fn install(&self) -> String {
        let (url, sum) = (&self.server.url, self.server.checksum());
        self.run(&format!("sh /srv/install.sh -s {url} -t 'the \"token\"' -c {sum} --worker")).await
    }

    async fn plan(&self, plan: &str) {
        self.api.plan(plan, Some("pending"));
        self.api.until("the plan is applied", |api| api.text("applied-checksum") == sum(plan)).await;
    }

    fn ids(&self) -> Vec<String> {
        let requests = self.server.requests.lock().unwrap();
        requests.iter().filter_map(|(_, headers)| headers.get("x-cattle-id").cloned()).collect()
    }

    fn exists(&self, path: &str) -> bool {
        self.container.root().join(path.trim_start_matches('/')).exists()
    }

    fn is_clean(&self) {
        for gone in [
            "/etc/systemd/system/rancher-system-agent.service",
            "/etc/systemd/system/rancher-system-agent.env",
            "/etc/systemd/system/multi-user.target.wants/rancher-system-agent.service",
            "/etc/rancher/agent",
            "/var/lib/rancher/agent",
            "/usr/local/bin/rancher-system-agent",
            "/usr/local/bin/rancher-system-agent-uninstall.sh",
        ] {
            assert!(!self.exists(gone), "{gone} still exists");
        }
        assert_eq!(self.container.says(&format!("systemctl show -P LoadState {UNIT}")), "not-found");
        assert_eq!(self.container.says("pgrep -f 'rancher-system-agen[t]' || true"), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_check_39_40_a_host_with_systemd_from_install_to_uninstall() {
    let Some(mut host) = tokio::task::block_in_place(Host::boot) else { return };
    let seen = "cat /proc/self/oom_score_adj; ulimit -c; umask; echo applied >> /srv/applied";
    host.api.create(&[("plan", &shell(seen)), ("plan-state", "pending")]);
    let said = host.install().await;
    assert!(said.contains("started rancher-system-agent.service"), "{said}");
    host.api.until_text("plan-state", "succeeded").await;
    assert_eq!(host.run(&format!("systemctl is-active {UNIT}")).await, "active");
    assert_eq!(host.run(&format!("systemctl is-enabled {UNIT}")).await, "enabled");
    // systemd accepts every line of the unit.
    let complaints = host.run(&format!("systemd-analyze verify /etc/systemd/system/{UNIT} 2>&1")).await;
    assert!(!complaints.contains("rancher-system-agent"), "{complaints}");
    // The agent has a lowered OOM score, its instructions do not; their environment is otherwise normal.
    assert_eq!(host.api.output("applied-output", "i"), "0\n0\n0022\n");
    let pid = host.run(&format!("systemctl show -P MainPID {UNIT}")).await;
    // A container may not be permitted to lower the score, so check the unit's setting.
    assert_eq!(host.run(&format!("systemctl show -P OOMScoreAdjust {UNIT}")).await, "-500");
    let status = host.run("rancher-system-agent status").await;
    assert!(
        status.contains("connected to 127.0.0.1") && status.contains("succeeded, revision 1"),
        "{status}"
    );

    // Killed during an instruction, it is restarted, and its processes are gone before the plan runs again.
    let twice = shell("echo $$ >> /srv/pids; if [ $(wc -l < /srv/pids) = 1 ]; then exec sleep 600; fi");
    host.api.plan(&twice, Some("pending"));
    let first = host.container.root().join("srv/pids");
    host.container
        .until("the instruction runs", |_| fs::read_to_string(&first).is_ok_and(|text| text.ends_with('\n')));
    host.run(&format!("kill -9 {pid}")).await;
    host.api.until("it is applied", |api| api.text("applied-checksum") == sum(&twice)).await;
    let left = fs::read_to_string(&first).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(host.run(&format!("test -e /proc/{left} && echo alive || echo gone")).await, "gone");

    // The manager offers another agent: the process stays the same, and systemd does not notice the upgrade.
    let show = format!("systemctl show -P MainPID -P NRestarts {UNIT}");
    let before = host.run(&show).await;
    let mut new = fs::read(env!("CARGO_BIN_EXE_drover-agent")).unwrap();
    new.extend_from_slice(b"a new version");
    host.api.offer(&new);
    let installed = host.container.root().join("usr/local/bin/rancher-system-agent");
    tokio::task::block_in_place(|| {
        host.container
            .until("the agent is replaced", |_| fs::read(&installed).is_ok_and(|found| found == new));
    });
    host.plan(&shell("echo upgraded >> /srv/applied")).await;
    assert_eq!(host.run(&show).await, before);

    // Reboot.
    tokio::task::block_in_place(|| host.container.reboot());
    host.plan(&shell("echo rebooted >> /srv/applied")).await;
    assert_eq!(host.run(&format!("systemctl is-active {UNIT}")).await, "active");
    assert_eq!(host.run("cat /srv/applied").await, "applied\nupgraded\nrebooted");

    // The same machine, installed again; the installer had nothing to wait for.
    host.install().await;
    host.plan(&shell("echo again >> /srv/applied")).await;
    let ids = host.ids();
    assert!(ids.len() == 2 && ids[0] == ids[1] && ids[0].len() == 63, "{ids:?}");

    // The distribution is kept, and then removed.
    let uninstaller = "/usr/local/bin/k3s-agent-uninstall.sh";
    host.run(&format!("printf '#!/bin/sh\\necho bye\\nrm -f /usr/local/bin/k3s \"$0\"\\n' > {uninstaller}; chmod 755 {uninstaller}; touch /usr/local/bin/k3s")).await;
    // Started by a plan, as the distribution's installer does.
    host.plan(&shell("systemd-run --quiet --unit=k3s-agent.service sleep 6000")).await;
    let show = "systemctl show -P MainPID -P ActiveState k3s-agent.service";
    let distribution = host.run(show).await;
    assert!(distribution.lines().any(|line| line == "active"), "{distribution}");
    host.run("rancher-system-agent-uninstall.sh").await;
    host.is_clean();
    assert_eq!(host.run(show).await, distribution, "the distribution keeps running");
    host.run("systemctl stop k3s-agent.service").await;
    assert!(host.exists("/usr/local/bin/k3s") && host.exists(uninstaller));
    host.install().await;
    assert_ne!(host.ids().last(), ids.last(), "an uninstalled machine gets a new identity");
    let said = host.run("rancher-system-agent uninstall --purge-distribution").await;
    assert!(said.contains("bye"), "{said}");
    host.is_clean();
    assert!(!host.exists("/usr/local/bin/k3s") && !host.exists(uninstaller));
    let failed = host.run("systemctl list-units --failed --no-legend --plain").await;
    assert!(!failed.contains("rancher"), "{failed}");
}
