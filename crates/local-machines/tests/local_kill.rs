//! Local machines when a process is killed, files are removed or namespaces are forbidden, as root and as a non-root
//! user.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use drover_local_machines::{CreateOptions, Error, InstallState, Local, PowerState};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{Rig, eventually, harness, is_process};

as_root_and_as_user! {
    only_one_holder_can_run
    holder_is_killed
    creating_client_is_killed_machine_drivers_check_10_and_11
    holder_is_killed_while_it_creates
    removal_during_creation_machine_drivers_check_12
    data_directories_are_independent
}

fn kill_process(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// If two clients start a holder at the same time, the second one fails to lock and exits.
fn only_one_holder_can_run(rig: Rig) {
    // The holder does not exit while a client is connected.
    let watch = rig.local.watch().unwrap();
    let first = watch.info().clone();
    let second = Command::new(harness())
        .args(["machine-holder", "--data-dir"])
        .arg(&rig.data_dir)
        .arg("--exe")
        .arg(harness())
        .status()
        .unwrap();
    assert!(second.success());
    assert_eq!(rig.local.hello().unwrap().instance, first.instance);
    drop(watch);
    rig.finish();
}

/// Machines end with their holder. The next call starts a new one, which starts the machines from their disks.
fn holder_is_killed(rig: Rig) {
    let machines = ["a", "b", "c"].map(|name| rig.create_with(name, "echo once >>/root/runs"));
    for machine in &machines {
        eventually("installed", || rig.local.inspect(&machine.name).unwrap().install == InstallState::Done);
    }
    rig.sh("a", "setsid sleep 5001 >/dev/null 2>&1 & echo kept >/root/kept");
    let watch = rig.local.watch().unwrap();
    let before = watch.info().clone();
    kill_process(before.pid as i32);
    watch.wait();
    for machine in &machines {
        eventually("the machine ended with its holder", || !is_process(machine.pid.unwrap()));
    }
    let after = rig.local.hello().unwrap();
    assert_ne!(after.instance, before.instance);
    assert_eq!(after.gateway, before.gateway);
    let listener = rig.local.listen(0).unwrap();
    assert_eq!(listener.local_addr().unwrap().ip(), rig.local.gateway().unwrap());
    for machine in rig.local.list().unwrap() {
        assert_eq!((machine.state, machine.pid), (PowerState::Stopped, None));
    }
    for machine in &machines {
        let again = rig.local.start(&machine.name).unwrap();
        assert_eq!((again.ip, &again.machine_id), (machine.ip, &machine.machine_id));
        assert_eq!(rig.sh(&machine.name, "cat /root/runs"), "once");
    }
    assert_eq!(rig.sh("a", "cat /root/kept; pgrep -f '[s]leep 5001' || echo none"), "kept\nnone");
    rig.finish();
}

/// A repeated create results in exactly one complete machine.
fn creating_client_is_killed_machine_drivers_check_10_and_11(rig: Rig) {
    for round in 0..12u64 {
        let name = format!("m{round}");
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client_that_creates", "--ignored", "--nocapture"])
            .env("DROVER_TEST_EXE", harness())
            .env("DROVER_TEST_DATA", &rig.data_dir)
            .env("DROVER_TEST_NAME", &name)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Covers the time of starting the process and creating the machine. The exact point does not matter.
        std::thread::sleep(Duration::from_millis(round * 7));
        client.kill().unwrap();
        client.wait().unwrap();
        let options = CreateOptions {
            uid: name.clone(),
            install_script: "echo run >>/root/runs".into(),
            ..CreateOptions::default()
        };
        let machine = rig.local.create(&name, &options).unwrap();
        assert_eq!(machine.state, PowerState::Running);
        eventually("installed", || rig.local.inspect(&name).unwrap().install == InstallState::Done);
        assert_eq!(rig.sh(&name, "cat /root/runs"), "run");
    }
    assert_eq!(rig.local.list().unwrap().len(), 12);
    assert_eq!(fs::read_dir(rig.data_dir.join("local/machines")).unwrap().count(), 12);
    rig.finish();
}

#[test]
#[ignore = "a part of creating_client_is_killed"]
fn client_that_creates() {
    let data_dir = std::env::var_os("DROVER_TEST_DATA").unwrap();
    let name = std::env::var("DROVER_TEST_NAME").unwrap();
    let local = Local::open(Path::new(&data_dir), &harness()).unwrap();
    let options = CreateOptions {
        uid: name.clone(),
        install_script: "echo run >>/root/runs".into(),
        ..CreateOptions::default()
    };
    local.create(&name, &options).unwrap();
}

fn holder_is_killed_while_it_creates(rig: Rig) {
    for round in 0..15u64 {
        let holder = rig.local.hello().unwrap();
        let local = rig.local.clone();
        let creating = std::thread::spawn(move || {
            let script = "echo run >>/root/runs".to_owned();
            let options = CreateOptions { install_script: script, ..CreateOptions::default() };
            // The first call may be interrupted; the second continues with a new holder.
            local.create("m", &options).or_else(|_| local.create("m", &options))
        });
        std::thread::sleep(Duration::from_millis(round * 4));
        kill_process(holder.pid as i32);
        creating.join().unwrap().unwrap();
        // The holder may have been killed after it answered.
        eventually("it runs", || {
            rig.local.start("m").is_ok_and(|machine| machine.state == PowerState::Running)
        });
        eventually("installed", || rig.local.inspect("m").unwrap().install == InstallState::Done);
        assert!(rig.sh("m", "cat /etc/machine-id").len() == 32);
        rig.local.rm("m").unwrap();
        assert_eq!(fs::read_dir(rig.data_dir.join("local/machines")).unwrap().count(), 0);
    }
    rig.finish();
}

/// A removal does not wait for a creation. Nothing is left, whichever comes first.
fn removal_during_creation_machine_drivers_check_12(rig: Rig) {
    for round in 0..25u64 {
        let creator = rig.local.clone();
        let creating = std::thread::spawn(move || creator.create("m", &CreateOptions::default()));
        std::thread::sleep(Duration::from_millis(round % 13 * 3));
        rig.local.rm("m").unwrap();
        let created = creating.join().unwrap();
        if let Ok(machine) = &created {
            // Created before or after the removal, but never partially.
            assert!(machine.pid.is_some() || machine.state == PowerState::Stopped);
        }
        rig.local.rm("m").unwrap();
        assert!(matches!(rig.local.inspect("m"), Err(Error::NotFound(_))));
        assert_eq!(fs::read_dir(rig.data_dir.join("local/machines")).unwrap().count(), 0);
    }
    rig.create("m");
    rig.finish();
}

/// Data directories on one host are independent, and each can be removed.
fn data_directories_are_independent(rig: Rig) {
    let other = Rig::new();
    let (left, right) = (rig.create("m"), other.create("m"));
    assert_ne!(left.machine_id, right.machine_id);
    rig.sh("m", "echo left >/root/x");
    other.sh("m", "echo right >/root/x");
    assert_eq!((rig.sh("m", "cat /root/x"), other.sh("m", "cat /root/x")), ("left".into(), "right".into()));
    other.finish();
    assert_eq!(rig.sh("m", "cat /root/x"), "left");
    // If the data directory is removed, its holder detects that and exits, with its machines.
    let holder = rig.local.hello().unwrap();
    fs::remove_file(rig.data_dir.join("local/holder.lock")).unwrap();
    eventually("the holder has ended", || !is_process(holder.pid as i32));
    eventually("its machine has ended", || !is_process(left.pid.unwrap()));
    rig.finish();
}

/// The error message says what to do.
#[test]
fn user_namespaces_forbidden() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // In a user namespace whose limit is 0, no process without capabilities can create another one.
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all --inh-caps -all \
                  \"$0\" machine-holder --data-dir \"$1\" --exe \"$0\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(harness())
        .arg(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("user.max_user_namespaces is 0: set it to 10000"), "{text}");
}

#[test]
fn data_directory_cannot_hold_an_overlay() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED data_directory_cannot_hold_an_overlay: not root");
        return;
    }
    for (mount, cause) in [
        ("mkdir u w l && mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w d", "itself an overlay"),
        ("mount -t tmpfs -o noexec none d", "mounted noexec"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "cd \"$1\" && mkdir d && {mount} && exec \"$0\" machine-holder --data-dir d --exe \"$0\""
        );
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .arg(harness())
            .arg(dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(cause) && text.contains("--data-dir"), "{text}");
    }
}
