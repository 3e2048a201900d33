//! The control group of a running machine: its own subtree below the holder's group, with a limit on the number of
//! processes. Supports cgroup v2 and the `pids` hierarchy of v1. Without a writable group on the host there is no
//! limit.
//!
//! A group is a directory that still exists after the holder was killed. Its path is therefore recorded before it is
//! created, and the next holder removes it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// Maximum number of processes and threads of a machine: enough for a node with its agent, and too few to starve the
/// host.
pub(crate) const MAX_PROCESSES: u32 = 4096;
/// Prefix of the names of Drover's groups. No other group is ever removed.
const PREFIX: &str = "drover-";
/// The kernel releases a group shortly after its last process has ended.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The group that a machine runs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    /// The directory on the host.
    pub(crate) path: PathBuf,
    /// Whether it is in cgroup v2, where one directory is used by all controllers.
    pub(crate) unified: bool,
}

/// Moves process 1 of a new machine into a new group. `record` is the file that records the paths.
pub(crate) fn confine(record: &Path, machine_id: &str, pid: i32) -> Option<Group> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let place = find(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))?;
    let before: Vec<PathBuf> = recorded(record).into_iter().filter(|path| path.exists()).collect();
    write_record(record, &before);
    // The name differs at each boot, because the group of the previous boot may still be in removal.
    let name = format!("{PREFIX}{machine_id}-{pid}");
    for parent in place.parents(|path| fs::read_to_string(path).unwrap_or_default()) {
        let group = Group { path: parent.join(&name), unified: place.unified };
        if append_record(record, &group.path).is_err() || fs::create_dir(&group.path).is_err() {
            continue;
        }
        // The file is missing if the controller is not enabled for this part of the tree.
        let _ = fs::write(group.path.join("pids.max"), MAX_PROCESSES.to_string());
        match fs::write(group.path.join("cgroup.procs"), pid.to_string()) {
            Ok(()) => return Some(group),
            Err(_) => drop(fs::remove_dir(&group.path)),
        }
    }
    None
}

/// Removes all empty groups that are recorded in `record`, for a machine that is neither running nor starting. Groups
/// that are still in use remain recorded.
pub(crate) fn remove_recorded(record: &Path) {
    let left: Vec<PathBuf> = recorded(record).into_iter().filter(|path| !remove(path)).collect();
    write_record(record, &left);
}

/// Records exactly these groups.
fn write_record(record: &Path, groups: &[PathBuf]) {
    let text: String = groups.iter().map(|path| format!("{}\n", path.display())).collect();
    // If the disk is full, the old and longer list remains, which is harmless.
    let _ = if text.is_empty() { fs::remove_file(record) } else { fs::write(record, text) };
}

/// Removes a group whose processes have ended. Returns true if it no longer exists.
pub(crate) fn remove(path: &Path) -> bool {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return false,
        }
    }
}

fn recorded(record: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(record).unwrap_or_default();
    let ours = |path: &PathBuf| {
        path.is_absolute()
            && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
    };
    text.lines().map(PathBuf::from).filter(ours).collect()
}

fn append_record(record: &Path, path: &Path) -> io::Result<()> {
    use std::io::Write;
    let mut file = fs::File::options().create(true).append(true).open(record)?;
    writeln!(file, "{}", path.display())
}

/// The position of this process in the hierarchy that counts processes.
#[derive(Debug, PartialEq, Eq)]
struct Position {
    mount: PathBuf,
    own: PathBuf,
    unified: bool,
}

impl Position {
    /// Possible parents for the group of a machine, best first. In cgroup v2 a group with processes cannot enable
    /// controllers for its children, so the holder's own group is the last choice: a subtree without a limit.
    fn parents(&self, read: impl Fn(PathBuf) -> String) -> Vec<PathBuf> {
        if !self.unified {
            return vec![self.own.clone()];
        }
        let mut parents: Vec<PathBuf> = self
            .own
            .ancestors()
            .take_while(|path| path.starts_with(&self.mount))
            .filter(|path| {
                read(path.join("cgroup.subtree_control")).split_whitespace().any(|name| name == "pids")
            })
            .map(Path::to_owned)
            .collect();
        if !parents.contains(&self.own) {
            parents.push(self.own.clone());
        }
        parents
    }
}

/// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn find(mountinfo: &str, cgroup: &str) -> Option<Position> {
    // hierarchy-ID:controllers:path; v2 has the ID 0 and no controllers.
    let own = |unified: bool| {
        cgroup.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let fits = if unified {
                number == "0" && controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == "pids")
            };
            fits.then_some(path)
        })
    };
    let place = |unified: bool| {
        let own = own(unified)?;
        mountinfo.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
            let (root, mount) = (left.next()?, Path::new(left.next()?));
            let (kind, options) = (right.next()?, right.nth(1)?);
            let fits = if unified {
                kind == "cgroup2"
            } else {
                kind == "cgroup" && options.split(',').any(|name| name == "pids")
            };
            let inside = Path::new(own).strip_prefix(root).ok()?;
            let own = if inside.as_os_str().is_empty() { mount.to_owned() } else { mount.join(inside) };
            fits.then(|| Position { mount: mount.to_owned(), own, unified })
        })
    };
    // A hybrid host counts processes in v1.
    place(false).or_else(|| place(true))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const UNIFIED: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn v2_prefers_a_parent_that_limits_processes() {
        let place = find(UNIFIED, "0::/user.slice/user-0.slice/session-3.scope\n").unwrap();
        assert_eq!(place.own, Path::new("/sys/fs/cgroup/user.slice/user-0.slice/session-3.scope"));
        let read = |path: PathBuf| {
            let limits = path.starts_with("/sys/fs/cgroup/user.slice/user-0.slice/cgroup.subtree_control");
            if limits { "cpu memory pids".to_owned() } else { String::new() }
        };
        let parents = place.parents(read);
        assert_eq!(parents[0], Path::new("/sys/fs/cgroup/user.slice/user-0.slice"));
        assert_eq!(parents[1], place.own);
    }

    #[test]
    fn hybrid_host_uses_the_pids_hierarchy() {
        let mounts = "40 30 0:38 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
                      41 30 0:39 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let place = find(mounts, "8:pids:/docker/x\n4:memory:/y\n0::/\n").unwrap();
        assert_eq!(place.own, Path::new("/sys/fs/cgroup/pids/docker/x"));
        assert_eq!(place.parents(|_| String::new()), std::slice::from_ref(&place.own));
    }

    #[test]
    fn group_outside_of_the_mount_is_not_used() {
        assert_eq!(find("", "0::/\n"), None);
        let of_another = "35 24 0:30 /../x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(find(of_another, "0::/y\n"), None);
    }

    #[test]
    fn only_groups_of_drover_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (other, ours) = (dir.path().join("other"), dir.path().join("drover-1"));
        fs::create_dir(&other).unwrap();
        fs::create_dir(&ours).unwrap();
        let record = dir.path().join("cgroups");
        for path in [&other, &ours, &dir.path().join("drover-gone")] {
            append_record(&record, path).unwrap();
        }
        remove_recorded(&record);
        assert!(other.exists() && !ours.exists() && !record.exists());
    }
}
