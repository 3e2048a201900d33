//! The control group of a machine, if the host allows one.

use std::{fs, path::PathBuf};

use crate::support::{Rig, eventually, is_process};

/// Finds the groups on the host that belong to machines of a rig by the machines' ids.
pub fn groups(ids: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if ids.iter().any(|id| name.starts_with(&format!("drover-{id}"))) {
                    found.push(entry.path());
                }
                folders.push(entry.path());
            }
        }
    }
    found
}

/// The machine sees only its own group, and the number of its processes is limited.
pub fn a_machine_has_a_control_group_of_its_own(rig: Rig) {
    let machine = rig.create("own");
    for line in rig.sh("own", "cat /proc/self/cgroup /proc/1/cgroup").lines() {
        assert!(line.ends_with(":/"), "a machine can see its group on the host: {line}");
    }
    let Some(group) = groups(&[machine.machine_id]).pop() else {
        assert!(!nix::unistd::geteuid().is_root(), "root may always have one");
        eprintln!("SKIPPED the limit: this host does not allow a control group for non-root users");
        rig.finish();
        return;
    };
    let limit = group.join("pids.max");
    if limit.exists() {
        assert_eq!(fs::read_to_string(&limit).unwrap().trim(), "4096");
        let seen =
            rig.sh("own", "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null || true");
        assert_eq!(seen, "4096");
        // A low limit, so that the test does not need thousands of processes.
        let now: u32 = fs::read_to_string(group.join("pids.current")).unwrap().trim().parse().unwrap();
        fs::write(&limit, (now + 20).to_string()).unwrap();
        let bomb = "for i in $(seq 60); do sleep 60 >/dev/null 2>&1 & done; wait";
        assert_ne!(rig.code("own", &format!("timeout 20 sh -c '{bomb}' 2>&1")), 0);
        let now: u32 = fs::read_to_string(group.join("pids.current")).unwrap().trim().parse().unwrap();
        assert!(now < 60, "{now} processes");
        fs::write(&limit, "4096").unwrap();
        rig.until("own", "pkill sleep; echo alive");
    }
    assert_ne!(rig.code("own", "mkdir /sys/fs/cgroup/x /sys/fs/cgroup/pids/x 2>/dev/null"), 0);
    rig.finish();
}

pub fn control_groups_are_removed_with_their_machines(rig: Rig) {
    let ids: Vec<String> = ["m", "n"].map(|name| rig.create(name).machine_id).into();
    let before = groups(&ids).len();
    if before == 0 {
        eprintln!("SKIPPED: this host allows no control group");
        rig.finish();
        return;
    }
    assert_eq!(before, 2);
    let left = |count: usize| {
        eventually("only groups of running machines are left", || groups(&ids).len() == count);
    };
    rig.local.stop("m").unwrap();
    left(1);
    rig.local.start("m").unwrap();
    left(2);
    let _ = rig.local.output("m", &["systemctl", "reboot"]);
    rig.until("m", "true");
    left(2);
    rig.local.rm("n").unwrap();
    left(1);
    // A killed holder leaves the groups of its machines; the next holder removes them.
    let kill = || {
        let pid = rig.local.hello().unwrap().pid as i32;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        eventually("the holder has ended", || !is_process(pid));
    };
    kill();
    rig.local.start("m").unwrap();
    left(1);
    rig.local.stop("m").unwrap();
    left(0);
    // A removal of its data directory does so too.
    rig.local.start("m").unwrap();
    left(1);
    kill();
    rig.finish();
    assert_eq!(groups(&ids), Vec::<PathBuf>::new());
}
