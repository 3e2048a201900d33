//! Local machines, as root and as a non-root user: their properties, the programs they run, their power states.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::SocketAddr,
};

use drover_local_machines::{CreateOptions, Error, InstallState, Local, PowerState, ReadOnlyMount, Terminal};
use support::{Rig, eventually, is_process};

as_root_and_as_user! {
    five_machines_machine_drivers_check_31_and_32
    a_machine_behaves_like_a_host
    install_script_runs_until_it_succeeds_once
    units_are_supervised
    power_and_disk
    switching_off_works_on_a_full_disk
    reading_state_starts_no_holder
    an_idle_holder_exits
    create_twice_adopts
    a_shell_on_a_terminal
}

/// Each machine has its own name, address and identity, and can connect to the others and to the gateway. After removal
/// nothing is left.
fn five_machines_machine_drivers_check_31_and_32(rig: Rig) {
    let names = ["one", "two", "three", "four", "five"];
    let machines: Vec<_> = names.map(|name| rig.create(name)).into();
    let unique = |values: Vec<String>| values.into_iter().collect::<BTreeSet<_>>().len();
    assert_eq!(unique(machines.iter().map(|machine| machine.ip.to_string()).collect()), 5);
    assert_eq!(
        unique(machines.iter().map(|machine| rig.sh(&machine.name, "cat /etc/machine-id")).collect()),
        5
    );
    let listener = rig.local.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let gateway = rig.local.gateway().unwrap();
    assert_eq!(listener.local_addr().unwrap().ip(), gateway);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let text = format!("HTTP/1.1 200 OK\r\n\r\nhello {}", stream.peer_addr().unwrap().ip());
            let _ = stream.write_all(text.as_bytes());
            // Reads the request, if there is one, so that closing does not reset the connection.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    for machine in &machines {
        let name = &machine.name;
        assert_eq!(rig.sh(name, "hostname; cat /etc/hostname"), format!("{name}\n{name}"));
        assert_eq!(rig.sh(name, "echo $$ >/dev/null; cat /proc/1/comm"), "drover");
        let hello = rig.sh(name, &format!("exec 3<>/dev/tcp/{gateway}/{port} && cat <&3").bash());
        assert!(hello.ends_with(&format!("hello {}", machine.ip)), "{hello}");
        // The machines' own curl, for hosts that have none.
        let curl = format!("/usr/lib/drover/drover machine-shim curl -fsSL http://{gateway}:{port}/");
        assert_eq!(rig.sh(name, &curl), format!("hello {}", machine.ip));
        // Every machine runs a server; the next machine connects to it.
        rig.sh(name, "echo \"I am $(hostname)\" >/root/page; (cd /root && setsid perl -MIO::Socket::INET -e '$s=IO::Socket::INET->new(LocalPort=>8080,Listen=>5,ReuseAddr=>1);while($c=$s->accept){open F,\"page\";print $c <F>;close $c}' >/dev/null 2>&1 &)");
    }
    for (index, machine) in machines.iter().enumerate() {
        let peer = &machines[(index + 1) % 5];
        let call = format!("exec 3<>/dev/tcp/{}/8080 && cat <&3", peer.ip).bash();
        rig.until(&machine.name, &format!("{call} | grep -q 'I am {}'", peer.name));
        let mut stream = rig.local.dial(SocketAddr::new(peer.ip.into(), 8080), support::TIMEOUT).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text.trim(), format!("I am {}", peer.name));
    }
    // A manager can be restarted.
    let again = Local::open(&rig.data_dir, &support::harness()).unwrap();
    assert_eq!(again.list().unwrap().iter().filter(|it| it.state == PowerState::Running).count(), 5);
    let pids: Vec<i32> = machines.iter().filter_map(|machine| machine.pid).collect();
    for name in names {
        assert!(rig.local.rm(name).unwrap());
        assert!(!rig.local.rm(name).unwrap(), "a second removal finds nothing");
    }
    assert!(pids.iter().all(|pid| !is_process(*pid)));
    assert_eq!(fs::read_dir(rig.data_dir.join("local/machines")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(rig.data_dir.join("local/trash")).unwrap().count(), 0);
    rig.finish();
}

/// The environment that installers and agents require.
fn a_machine_behaves_like_a_host(rig: Rig) {
    let images = tempfile::tempdir().unwrap();
    fs::write(images.path().join("image.tar"), "layers").unwrap();
    let options = CreateOptions {
        hostname: "node-1".to_owned(),
        cpus: 1,
        authorized_key: "ssh-ed25519 AAAA test".to_owned(),
        mounts: vec![ReadOnlyMount { source: images.path().into(), target: "/var/lib/drover/images".into() }],
        hosts: [("manager.local".to_owned(), "10.1.2.3".to_owned())].into(),
        ..CreateOptions::default()
    };
    rig.local.create("host", &options).unwrap();
    assert_eq!(rig.sh("host", "id -u; whoami; pwd; echo $HOME"), "0\nroot\n/root\n/root");
    assert_eq!(rig.sh("host", "hostname; nproc"), "node-1\n1");
    assert_eq!(rig.sh("host", "cat /root/.ssh/authorized_keys"), "ssh-ed25519 AAAA test");
    assert_eq!(rig.sh("host", "getent hosts manager.local | cut -d' ' -f1"), "10.1.2.3");
    assert_eq!(rig.sh("host", "cat /var/lib/drover/images/image.tar"), "layers");
    assert_ne!(rig.code("host", "touch /var/lib/drover/images/x"), 0, "extra mounts are read-only");
    // Paths that an installer writes.
    for path in [
        "/usr/local/bin/k3s",
        "/usr/local/lib/systemd/system/x.service",
        "/etc/systemd/system/k3s.service",
        "/etc/rancher/k3s/config.yaml.d/50-rancher.yaml",
        "/etc/default/k3s",
        "/etc/profile.d/x.sh",
        "/etc/ssl/certs/x.pem",
        "/etc/hosts",
        "/etc/resolv.conf",
        "/var/lib/rancher/x",
        "/opt/x",
        "/home/x",
        "/srv/x",
        "/x",
        "/run/x",
        "/tmp/x",
        "/dev/shm/x",
    ] {
        rig.sh("host", &format!("mkdir -p $(dirname {path}) && echo new >>{path}"));
    }
    assert_eq!(
        rig.sh("host", "ls /usr/local/bin /etc/rancher"),
        "/etc/rancher:\nk3s\n\n/usr/local/bin:\nk3s"
    );
    rig.sh(
        "host",
        "head -c 3 /dev/urandom >/dev/null && echo x >/dev/null && test -c /dev/zero && test -d /proc/1",
    );
    rig.sh(
        "host",
        "test -e /sys/class/net/eth0 && test ! -w /sys/class/net/eth0/mtu || ! echo 1 >/sys/kernel/x",
    );
    assert_eq!(rig.sh("host", "ls /sys/class/net | sort | xargs"), "eth0 lo");
    assert_eq!(rig.sh("host", "sudo -n -E sh -c 'echo as root'"), "as root");
    // No files of the host are visible.
    let marker = rig.data_dir.display().to_string();
    assert_ne!(rig.code("host", &format!("ls '{marker}'")), 0);
    assert!(!rig.sh("host", "cat /proc/mounts").contains(&marker));
    assert_eq!(rig.sh("host", "ls -A /home /opt | grep -v '^x$' | xargs"), "/home: /opt:");
    // Other networks are not reachable, and connecting fails immediately.
    assert_ne!(rig.code("host", &"exec 3<>/dev/tcp/192.0.2.1/80".bash()), 0);
    let code =
        rig.code("host", "chown 1000:1000 /root/x 2>/dev/null || touch /root/x && chown 1000:1000 /root/x");
    let only_root = rig.local.hello().unwrap().only_root;
    assert_eq!(code != 0, only_root);
    assert_eq!(rig.code("host", "exit 7"), 7);
    assert_eq!(rig.code("host", "kill -9 $$"), 137);
    let missing = rig.local.output("host", &["/no/such/program"]);
    assert!(matches!(missing, Err(Error::Failed(why)) if why.contains("/no/such/program")));
    assert!(matches!(rig.local.output("nobody", &["true"]), Err(Error::NotFound(_))));
    let bad = rig.local.create("../x", &CreateOptions::default());
    assert!(matches!(bad, Err(Error::Invalid(why)) if why.contains("invalid machine name")));
    rig.finish();
}

fn install_script_runs_until_it_succeeds_once(rig: Rig) {
    let script =
        "#!/bin/sh\necho run >>/root/runs\ntest $(wc -l </root/runs) -ge 2 || { echo not yet; exit 3; }\n";
    let machine = rig.create_with("m", script);
    assert_ne!(machine.install, InstallState::None);
    eventually("the script has succeeded", || rig.local.inspect("m").unwrap().install == InstallState::Done);
    assert_eq!(rig.sh("m", "cat /root/runs"), "run\nrun");
    rig.until("m", "systemctl is-active --quiet drover-install");
    assert!(rig.sh("m", "journalctl -u drover-install -o cat").contains("not yet"));
    rig.local.kill("m").unwrap();
    rig.local.start("m").unwrap();
    rig.until("m", "journalctl -u drover-install -o cat | grep -q skipped");
    assert_eq!(rig.sh("m", "wc -l </root/runs"), "2");
    // A script that was interrupted by a power failure runs again.
    rig.create_with("slow", "echo run >>/root/runs; test -e /root/go || sleep 1000");
    rig.until("slow", "test -s /root/runs");
    rig.local.kill("slow").unwrap();
    rig.local.start("slow").unwrap();
    rig.until("slow", "test $(wc -l </root/runs) = 2");
    assert_eq!(rig.local.inspect("slow").unwrap().install, InstallState::Pending);
    rig.finish();
}

fn units_are_supervised(rig: Rig) {
    rig.create("m");
    rig.sh("m", UNITS);
    assert_eq!(rig.code("m", "systemctl is-enabled --quiet ticker"), 1);
    rig.sh("m", "systemctl daemon-reload && systemctl enable --now ticker");
    assert_eq!(rig.sh("m", "systemctl is-enabled ticker; systemctl is-active ticker"), "enabled\nactive");
    // Restarted when it is killed.
    let pid = rig.sh("m", "systemctl show -p MainPID --value ticker");
    rig.sh("m", &format!("kill -9 {pid}"));
    rig.until(
        "m",
        &format!("p=$(systemctl show -p MainPID --value ticker); test $p != 0 && test $p != {pid}"),
    );
    assert_eq!(rig.sh("m", "systemctl show -p NRestarts ticker"), "NRestarts=1");
    assert!(
        rig.sh("m", "journalctl -u ticker -n 50 --no-pager")
            .contains("tick of ticker with A=from-file B=two words")
    );
    // A start waits for a unit that becomes ready late, and reports one that fails.
    rig.sh("m", "systemctl start late && test -e /root/late-is-ready");
    assert_eq!(rig.code("m", "systemctl start broken 2>/root/err"), 1);
    assert!(rig.sh("m", "cat /root/err").contains("exit-code"));
    assert_eq!(
        rig.sh("m", "systemctl is-failed broken; systemctl show -p ExecMainStatus broken"),
        "failed\nExecMainStatus=3"
    );
    rig.sh("m", "systemctl reset-failed broken");
    assert_eq!(rig.code("m", "systemctl status broken"), 3);
    assert_eq!(rig.code("m", "systemctl status none 2>/dev/null"), 4);
    assert_eq!(rig.code("m", "systemctl start none 2>/dev/null"), 5);
    rig.until("m", "test $(systemctl is-active flapping) = failed");
    // A stop ends all processes of the unit, or with KillMode=process only its main process.
    rig.sh("m", "systemctl start family && systemctl start lonely");
    rig.until("m", "pgrep -f '[s]leep 7771' && pgrep -f '[s]leep 7772' && pgrep -f '[s]leep 7773'");
    rig.sh("m", "systemctl stop family lonely");
    assert_ne!(rig.code("m", "pgrep -f '[s]leep 7771'"), 0);
    rig.sh("m", "pgrep -f '[s]leep 7773'");
    assert_ne!(rig.code("m", "pgrep -f '[s]leep 7772'"), 0);
    // A forking service.
    rig.sh("m", "systemctl start daemon && pgrep -f '[s]leep 7774' && systemctl stop daemon");
    assert_ne!(rig.code("m", "pgrep -f '[s]leep 7774'"), 0);
    // At every boot, only enabled units start. A reboot from inside is a boot.
    let before = rig.local.inspect("m").unwrap().pid;
    let _ = rig.local.output("m", &["systemctl", "reboot"]);
    eventually("it has booted again", || {
        let now = rig.local.inspect("m").unwrap();
        now.state == PowerState::Running && now.pid != before
    });
    rig.until("m", "systemctl is-active ticker");
    assert_eq!(rig.sh("m", "systemctl is-active lonely || true"), "inactive");
    rig.sh("m", "systemctl disable --now ticker");
    assert_eq!(
        rig.sh("m", "systemctl is-active ticker; systemctl is-enabled ticker; true"),
        "inactive\ndisabled"
    );
    let only_root = rig.local.hello().unwrap().only_root;
    assert_eq!(rig.code("m", "systemctl start stranger"), i32::from(only_root));
    if only_root {
        assert!(
            rig.sh("m", "journalctl -u stranger -o cat").contains("only uid 0 and gid 0 exist inside it")
        );
    } else {
        rig.until("m", "journalctl -u stranger -o cat | grep -x 65534");
    }
    rig.finish();
}

const UNITS: &str = r#"
set -e; cd /etc/systemd/system
unit() { cat >$1.service; }
echo 'A=from-file' >ticker.env
unit ticker <<'X'
[Unit]
Description=Ticks
After=network-online.target
[Service]
Environment=A=from-unit "B=two words"
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/systemd/system/ticker.env
ExecStartPre=-/bin/false
ExecStart=/bin/sh -c 'echo tick of %N with A=${A} B=${B}; exec \
    sleep 10000'
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
X
unit late <<'X'
[Service]
Type=notify
ExecStart=/usr/bin/perl -MIO::Socket::UNIX -e 'select(undef,undef,undef,0.3); open F,">/root/late-is-ready"; close F; IO::Socket::UNIX->new(Type=>SOCK_DGRAM,Peer=>$$ENV{NOTIFY_SOCKET})->send("READY=1\nSTATUS=up"); sleep 1000'
X
unit broken <<'X'
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'exit 3'
X
unit flapping <<'X'
[Service]
ExecStart=/bin/false
Restart=always
RestartSec=1ms
[Install]
WantedBy=multi-user.target
X
unit family <<'X'
[Service]
ExecStart=/bin/sh -c 'setsid sleep 7771 & exec sleep 10000'
X
unit lonely <<'X'
[Service]
KillMode=process
ExecStart=/bin/sh -c 'setsid sleep 7773 & exec sleep 7772'
X
unit daemon <<'X'
[Service]
Type=forking
ExecStart=/bin/sh -c 'setsid sleep 7774 & exit 0'
X
unit stranger <<'X'
[Service]
User=65534
ExecStart=/bin/sh -c 'id -u; exec sleep 1000'
X
systemctl start --no-block flapping
"#;

/// If the disk is too full for the record, the holder still remembers which machines were switched off.
fn switching_off_works_on_a_full_disk(rig: Rig) {
    rig.create("m");
    let folder = rig.data_dir.join("local/machines/m");
    // The path where the next version of the record would be written.
    let blocked = folder.join("machine.next");
    fs::create_dir(&blocked).unwrap();
    let switched_off = || rig.local.list().unwrap().iter().all(|machine| machine.switched_off);
    let recorded = || {
        let text = fs::read_to_string(folder.join("machine.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["switchedOff"].clone()
    };
    assert_eq!(rig.local.stop("m").unwrap().state, PowerState::Stopped);
    assert!(switched_off(), "forgotten");
    rig.local.start("m").unwrap();
    assert!(!switched_off(), "it was started");
    rig.local.stop("m").unwrap();
    assert_eq!((switched_off(), recorded()), (true, false.into()));
    // With free space, the same command updates the record.
    fs::remove_dir(&blocked).unwrap();
    rig.local.stop("m").unwrap();
    assert_eq!((switched_off(), recorded()), (true, true.into()));
    rig.finish();
}

fn power_and_disk(rig: Rig) {
    let first = rig.create("m");
    rig.sh("m", "echo kept >/var/lib/kept; echo kept >/usr/local/bin/kept; echo kept >/etc/rancher/kept; echo x >/tmp/x");
    rig.sh("m", "trap '' HUP; setsid sleep 5000 >/dev/null 2>&1 &");
    let stopped = rig.local.stop("m").unwrap();
    assert_eq!((stopped.state, stopped.pid, stopped.switched_off), (PowerState::Stopped, None, true));
    assert!(!is_process(first.pid.unwrap()));
    assert!(
        matches!(rig.local.output("m", &["true"]), Err(Error::Invalid(why)) if why.contains("start it first"))
    );
    assert_eq!(rig.local.stop("m").unwrap().state, PowerState::Stopped);
    let again = rig.local.start("m").unwrap();
    assert_eq!((again.ip, &again.machine_id, again.switched_off), (first.ip, &first.machine_id, false));
    assert_eq!(
        rig.sh("m", "cat /var/lib/kept /usr/local/bin/kept /etc/rancher/kept; ls /tmp"),
        "kept\nkept\nkept"
    );
    // If process 1 is killed from outside, the machine stops and all its processes end.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(again.pid.unwrap()), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    eventually("it has ended", || rig.local.inspect("m").unwrap().state == PowerState::Stopped);
    assert!(!rig.local.inspect("m").unwrap().switched_off, "no user switched it off");
    rig.local.start("m").unwrap();
    assert_eq!(rig.sh("m", "cat /var/lib/kept"), "kept");
    // From inside, process 1 cannot be killed, but the machine can power itself off.
    assert_eq!(rig.code("m", "kill -9 1; echo alive >/dev/null"), 0);
    // The caller may be killed before it receives the response.
    let _ = rig.local.output("m", &["poweroff"]);
    eventually("it is off", || rig.local.inspect("m").unwrap().state == PowerState::Stopped);
    // Power off all machines and end the holder. The next call starts a new one.
    rig.local.start("m").unwrap();
    rig.create("n");
    let holder = rig.local.hello().unwrap();
    rig.local.shutdown_all().unwrap();
    assert!(!is_process(holder.pid as i32));
    rig.local.shutdown_all().unwrap();
    let states: Vec<_> = rig.local.list().unwrap().iter().map(|machine| machine.state).collect();
    assert_eq!(states, [PowerState::Stopped, PowerState::Stopped]);
    assert_eq!(rig.local.gateway().unwrap(), std::net::IpAddr::from(holder.gateway));
    rig.local.start("m").unwrap();
    assert_eq!(rig.sh("m", "cat /var/lib/kept"), "kept");
    rig.finish();
}

/// Without a holder no machine is running: the disk contains the complete state, and reading it starts no process.
fn reading_state_starts_no_holder(rig: Rig) {
    let before = rig.create_with("m", "true");
    eventually("installed", || rig.local.inspect("m").unwrap().install == InstallState::Done);
    rig.create("n");
    rig.local.shutdown_all().unwrap();
    let listed = rig.local.list().unwrap();
    assert_eq!(listed.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>(), ["m", "n"]);
    let seen = [rig.local.inspect("m"), rig.local.stop("m"), rig.local.kill("m"), Ok(listed[0].clone())];
    for machine in seen.map(Result::unwrap) {
        assert_eq!((machine.state, machine.pid), (PowerState::Stopped, None));
        assert_eq!((machine.ip, &machine.machine_id), (before.ip, &before.machine_id));
        assert_eq!(machine.install, InstallState::Done);
    }
    for name in ["nosuch", "", "..", "m/disk", &"m".repeat(80)] {
        assert!(matches!(rig.local.inspect(name), Err(Error::NotFound(_))), "{name}");
        assert!(matches!(rig.local.stop(name), Err(Error::NotFound(_))), "{name}");
        assert!(!rig.local.rm(name).unwrap(), "{name}");
    }
    assert_eq!(support::leftovers(&rig.data_dir.display().to_string()), Vec::<String>::new());
    // A killed holder leaves its socket.
    let holder = rig.local.hello().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(holder.pid as i32), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    eventually("the holder has ended", || !is_process(holder.pid as i32));
    assert_eq!(rig.local.list().unwrap().len(), 2);
    assert_eq!(support::leftovers(&rig.data_dir.display().to_string()), Vec::<String>::new());
    // An operation that powers a machine on starts a holder.
    assert_eq!(rig.local.start("m").unwrap().state, PowerState::Running);
    assert!(rig.local.rm("n").unwrap());
    rig.finish();
}

/// A holder exits when no machine is powered on and no client is connected, and not before.
fn an_idle_holder_exits(rig: Rig) {
    let (running, watched) = (Rig::new(), Rig::new());
    running.create("m");
    let (machines, watch) = (running.local.hello().unwrap(), watched.local.watch().unwrap());
    // Started last, so that the other holders had at least as much time.
    rig.local.shutdown_all().unwrap();
    rig.create("off");
    rig.local.stop("off").unwrap();
    let holder = rig.local.hello().unwrap();
    eventually("the idle holder has exited", || !is_process(holder.pid as i32));
    assert!(is_process(machines.pid as i32) && is_process(watch.info().pid as i32));
    assert_eq!(running.sh("m", "echo alive"), "alive");
    // It is started again when it is needed.
    let machine = rig.local.start("off").unwrap();
    assert_eq!(machine.state, PowerState::Running);
    assert_ne!(rig.local.hello().unwrap().pid, holder.pid);
    drop(watch);
    [rig, running, watched].into_iter().for_each(Rig::finish);
}

fn create_twice_adopts(rig: Rig) {
    let options = CreateOptions { uid: "a".to_owned(), ..CreateOptions::default() };
    let first = rig.local.create("m", &options).unwrap();
    let second = rig.local.create("m", &options).unwrap();
    assert_eq!((first.ip, first.pid, &first.machine_id), (second.ip, second.pid, &second.machine_id));
    let other = CreateOptions { uid: "b".to_owned(), ..CreateOptions::default() };
    assert!(
        matches!(rig.local.create("m", &other), Err(Error::Invalid(why)) if why.contains("already exists"))
    );
    rig.local.kill("m").unwrap();
    assert_eq!(rig.local.create("m", &options).unwrap().state, PowerState::Running);
    assert_eq!(rig.local.list().unwrap().len(), 1);
    rig.finish();
}

/// `drover machine ssh`: a terminal of the machine, connected to stdin and stdout of the caller.
fn a_shell_on_a_terminal(rig: Rig) {
    rig.create("m");
    let mut client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_with_a_terminal", "--ignored", "--nocapture"])
        .env("DROVER_TEST_EXE", support::harness())
        .env("DROVER_TEST_DATA", &rig.data_dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.as_mut().unwrap().write_all(b"tty; stty size; echo mark-$((40 + 2)); exit 3\n").unwrap();
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for expected in ["/dev/pts/0", "24 80", "mark-42", "exit code 3"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // If a caller disconnects, its program ends.
    let mut client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_with_a_terminal", "--ignored", "--nocapture"])
        .env("DROVER_TEST_EXE", support::harness())
        .env("DROVER_TEST_DATA", &rig.data_dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    client.stdin.as_mut().unwrap().write_all(b"exec sleep 8881\n").unwrap();
    rig.until("m", "pgrep -f '[s]leep 8881'");
    client.kill().unwrap();
    client.wait().unwrap();
    rig.until("m", "! pgrep -f '[s]leep 8881'");
    rig.finish();
}

#[test]
#[ignore = "a part of a_shell_on_a_terminal"]
fn client_with_a_terminal() {
    let data_dir = std::env::var_os("DROVER_TEST_DATA").unwrap();
    let local = Local::attach(std::path::Path::new(&data_dir), &support::harness()).unwrap();
    let code = local.exec("m", &["/bin/sh".to_owned()], &BTreeMap::new(), Terminal::Interactive).unwrap();
    println!("exit code {code}");
}

trait Bash {
    fn bash(&self) -> String;
}

impl Bash for str {
    /// For scripts that require bash.
    fn bash(&self) -> String {
        format!("timeout 10 bash -c '{self}'")
    }
}
