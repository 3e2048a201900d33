//! Unusual hosts: each test runs this program again in the environment it tests.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    a_machine_cannot_change_its_host, a_machine_has_a_control_group_of_its_own,
    control_groups_are_removed_with_their_machines, group,
    support::{Rig, USER, harness},
    uuid,
};

/// Runs a test of this program again after the commands in `environment`. Returns true in the outer process, where the
/// test is complete.
fn rerun_in(test: &str, environment: &str) -> bool {
    if std::env::var_os("DROVER_TEST_ELSEWHERE").is_some() {
        return false;
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED {test}: not root");
        return true;
    }
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-ec", environment])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("hosts::{test}"), "--nocapture"])
        .env("DROVER_TEST_ELSEWHERE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed");
    true
}

/// Root without a user namespace, as on hosts that forbid them: without CAP_SETFCAP root cannot write its map.
#[test]
fn root_without_a_user_namespace() {
    let run = "exec setpriv --bounding-set -setfcap --inh-caps -setfcap \"$0\" \"$@\"";
    if rerun_in("root_without_a_user_namespace", run) {
        return;
    }
    let rig = Rig::new();
    let holder = rig.local.hello().unwrap().pid;
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).unwrap();
    assert_eq!(namespace(&holder.to_string()), namespace("self"));
    a_machine_cannot_change_its_host(rig);
}

/// Root in a container that hides parts of `/proc`: the kernel does not let a user namespace mount its own.
#[test]
fn proc_with_covered_parts() {
    let run = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$0\" \"$@\"";
    if rerun_in("proc_with_covered_parts", run) {
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

/// The process that starts Drover may have files and directories open, which a machine could use to access the host.
#[test]
fn descriptors_of_the_parent_process() {
    if rerun_in("descriptors_of_the_parent_process", "exec 8</etc/shadow 9</; exec \"$0\" \"$@\"") {
        return;
    }
    assert_eq!(fs::read_link("/proc/self/fd/9").unwrap(), Path::new("/"), "the test needs this descriptor");
    let rig = Rig::new();
    rig.create("m");
    let open = rig.sh("m", "for fd in /proc/1/fd/* /proc/$$/fd/*; do readlink $fd || true; done");
    for target in open.lines() {
        let inside = ["pipe:", "socket:", "anon_inode:", "/dev/null"].iter().any(|it| target.starts_with(it));
        assert!(inside, "a machine can access {target}:\n{open}");
    }
    rig.finish();
}

/// The kernel allows two stacked overlays. A machine still works and logs what it can read.
#[test]
fn etc_is_an_overlay() {
    let run = "mkdir -p \"$TMPDIR/l\"; mount -t overlay none -o lowerdir=/etc:\"$TMPDIR/l\" /etc; exec \"$0\" \"$@\"";
    let dir = tempfile::tempdir().unwrap();
    if rerun_in("etc_is_an_overlay", &format!("export TMPDIR='{}'; {run}", dir.path().display())) {
        return;
    }
    let rig = Rig::new();
    let machine = rig.create("m");
    let console = fs::read_to_string(&machine.console_log).unwrap();
    assert!(console.contains("/etc is visible with all files that root can read"), "{console}");
    assert_eq!(rig.sh("m", "cat /etc/shadow"), "root:*:19700:0:99999:7:::");
    rig.finish();
}

/// A host with only cgroup v2. (If its controllers are in v1, this is a subtree without a limit.)
#[test]
fn control_groups_of_version_2() {
    let run = "mkdir -p \"$TMPDIR/v2\"; mount -t cgroup2 none \"$TMPDIR/v2\"; umount -l -R /sys/fs/cgroup; \
               mount --move \"$TMPDIR/v2\" /sys/fs/cgroup; exec \"$0\" \"$@\"";
    let dir = tempfile::tempdir().unwrap();
    if rerun_in("control_groups_of_version_2", &format!("export TMPDIR='{}'; {run}", dir.path().display())) {
        return;
    }
    let rig = Rig::new();
    let machine = rig.create("m");
    assert_eq!(group::groups(&[machine.machine_id]).len(), 1);
    assert!(rig.sh("m", "cat /sys/fs/cgroup/cgroup.procs").lines().any(|pid| pid == "1"));
    assert_ne!(rig.code("m", "mkdir /sys/fs/cgroup/x"), 0);
    a_machine_has_a_control_group_of_its_own(rig);
    control_groups_are_removed_with_their_machines(Rig::new());
}

/// A non-root user with a delegated control group.
#[test]
fn a_delegated_control_group() {
    const TEST: &str = "a_delegated_control_group";
    if std::env::var_os("DROVER_TEST_ELSEWHERE").is_some() {
        let rig = Rig::new();
        let machine = rig.create("m");
        assert_eq!(group::groups(&[machine.machine_id]).len(), 1, "the user may have one");
        rig.local.rm("m").unwrap();
        a_machine_has_a_control_group_of_its_own(rig);
        control_groups_are_removed_with_their_machines(Rig::new());
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

/// Removed also if the test fails.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
