//! Hosts that are made otherwise: each test runs this program once more, in the surroundings that it is about.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    a_machine_cannot_change_its_host, a_machine_has_a_control_group_of_its_own,
    control_groups_go_with_their_machines, group,
    support::{Rig, USER, harness},
    uuid,
};

/// Runs a test of this program after the commands in `surroundings`. True in the outer process, where it is over.
fn elsewhere(test: &str, surroundings: &str) -> bool {
    if std::env::var_os("DROVER_TEST_ELSEWHERE").is_some() {
        return false;
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED {test}: not root");
        return true;
    }
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-ec", surroundings])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("hosts::{test}"), "--nocapture"])
        .env("DROVER_TEST_ELSEWHERE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed");
    true
}

/// Root without a user namespace, as where they are forbidden: without CAP_SETFCAP nobody may write its map.
#[test]
fn root_without_a_user_namespace() {
    let run = "exec setpriv --bounding-set -setfcap --inh-caps -setfcap \"$0\" \"$@\"";
    if elsewhere("root_without_a_user_namespace", run) {
        return;
    }
    let rig = Rig::new();
    let holder = rig.local.hello().unwrap().pid;
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).unwrap();
    assert_eq!(namespace(&holder.to_string()), namespace("self"));
    a_machine_cannot_change_its_host(rig);
}

/// Root in a container, whose `/proc` is covered in places: the kernel would not let a user namespace have its own.
#[test]
fn a_covered_proc() {
    let run = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$0\" \"$@\"";
    if elsewhere("a_covered_proc", run) {
        return;
    }
    let rig = Rig::new();
    rig.create("m");
    let log = fs::read_to_string(rig.data_dir.join("local/holder.log")).unwrap();
    assert!(log.contains("machines run without a user namespace: /proc/sys is mounted over"), "{log}");
    assert_eq!(rig.sh("m", "cat /proc/1/comm"), "drover");
    assert_ne!(rig.code("m", "echo 1 >/proc/sys/kernel/panic"), 0);
    rig.finish();
}

/// Whoever starts Drover may have files and directories open; with one of these a program could walk out.
#[test]
fn descriptors_of_the_starter() {
    if elsewhere("descriptors_of_the_starter", "exec 8</etc/shadow 9</; exec \"$0\" \"$@\"") {
        return;
    }
    assert_eq!(fs::read_link("/proc/self/fd/9").unwrap(), Path::new("/"), "the test has to have it");
    let rig = Rig::new();
    rig.create("m");
    let open = rig.sh("m", "for fd in /proc/1/fd/* /proc/$$/fd/*; do readlink $fd || true; done");
    for target in open.lines() {
        let inside = ["pipe:", "socket:", "anon_inode:", "/dev/null"].iter().any(|it| target.starts_with(it));
        assert!(inside, "a machine was given {target}:\n{open}");
    }
    rig.finish();
}

/// The kernel stacks two overlays. A machine runs all the same, and says what it shows.
#[test]
fn etc_is_an_overlay() {
    let run = "mkdir -p \"$TMPDIR/l\"; mount -t overlay none -o lowerdir=/etc:\"$TMPDIR/l\" /etc; exec \"$0\" \"$@\"";
    let dir = tempfile::tempdir().unwrap();
    if elsewhere("etc_is_an_overlay", &format!("export TMPDIR='{}'; {run}", dir.path().display())) {
        return;
    }
    let rig = Rig::new();
    let machine = rig.create("m");
    let console = fs::read_to_string(&machine.console_log).unwrap();
    assert!(console.contains("/etc is shown with all that root may read"), "{console}");
    assert_eq!(rig.sh("m", "cat /etc/shadow"), "root:*:19700:0:99999:7:::");
    rig.finish();
}

/// A host with cgroup v2 alone. (Here it has no controllers if those are in v1: a subtree without a limit.)
#[test]
fn control_groups_of_version_2() {
    let run = "mkdir -p \"$TMPDIR/v2\"; mount -t cgroup2 none \"$TMPDIR/v2\"; umount -l -R /sys/fs/cgroup; \
               mount --move \"$TMPDIR/v2\" /sys/fs/cgroup; exec \"$0\" \"$@\"";
    let dir = tempfile::tempdir().unwrap();
    if elsewhere("control_groups_of_version_2", &format!("export TMPDIR='{}'; {run}", dir.path().display())) {
        return;
    }
    let rig = Rig::new();
    let machine = rig.create("m");
    assert_eq!(group::groups(&[machine.machine_id]).len(), 1);
    assert!(rig.sh("m", "cat /sys/fs/cgroup/cgroup.procs").lines().any(|pid| pid == "1"));
    assert_ne!(rig.code("m", "mkdir /sys/fs/cgroup/x"), 0);
    a_machine_has_a_control_group_of_its_own(rig);
    control_groups_go_with_their_machines(Rig::new());
}

/// An ordinary user to whom the host gave a control group.
#[test]
fn a_delegated_control_group() {
    const TEST: &str = "a_delegated_control_group";
    if std::env::var_os("DROVER_TEST_ELSEWHERE").is_some() {
        let rig = Rig::new();
        let machine = rig.create("m");
        assert_eq!(group::groups(&[machine.machine_id]).len(), 1, "the user may have one");
        rig.local.rm("m").unwrap();
        a_machine_has_a_control_group_of_its_own(rig);
        control_groups_go_with_their_machines(Rig::new());
        return;
    }
    let pids = Path::new("/sys/fs/cgroup/pids");
    if !nix::unistd::geteuid().is_root() || !pids.is_dir() {
        eprintln!("SKIPPED {TEST}: needs root and the pids hierarchy of cgroup v1");
        return;
    }
    let group = Group(pids.join(format!("test-of-drover-{}", uuid())));
    fs::create_dir(&group.0).unwrap();
    for path in [group.0.clone(), group.0.join("cgroup.procs"), group.0.join("tasks")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (this, exe, scratch) = (dir.path().join("test"), dir.path().join("exe"), dir.path().join("scratch"));
    fs::copy(std::env::current_exe().unwrap(), &this).unwrap();
    fs::copy(harness(), &exe).unwrap();
    fs::create_dir(&scratch).unwrap();
    chown(&scratch, Some(USER), Some(USER)).unwrap();
    let run = format!(
        "echo $$ >{}/cgroup.procs; exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$0\" \"$@\"",
        group.0.display()
    );
    let status = Command::new("sh")
        .args(["-ec", &run])
        .arg(&this)
        .args(["--exact", &format!("hosts::{TEST}"), "--nocapture"])
        .env("DROVER_TEST_ELSEWHERE", "1")
        .env("DROVER_TEST_EXE", &exe)
        .env("TMPDIR", &scratch)
        .env("HOME", &scratch)
        .current_dir("/")
        .status()
        .unwrap();
    assert!(status.success(), "{TEST} failed");
    crate::support::eventually("the group is empty", || fs::remove_dir(&group.0).is_ok());
}

/// Gone also when the test fails.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
