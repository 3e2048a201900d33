//! The namespaces that contain all machines of a data directory: the checks that a non-root user may create them, and
//! that the data directory supports the disks of machines.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::{
        statfs::{FsType, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, statfs},
        statvfs::{FsFlags, statvfs},
        wait::waitpid,
    },
    unistd::{ForkResult, getegid, geteuid},
};

use crate::{
    error::{At, Error, Result},
    holder::log,
    layout::{private_dir, remove_tree},
    sys,
};

/// Moves this process, which must have one thread, into private mount and network namespaces within a new user
/// namespace. Returns whether only uid 0 exists inside.
///
/// For root, the user namespace has the same users as the host; it only removes privileges, because a capability in it
/// has no effect on the host. If root cannot create a user namespace, there is none. For another user, it has only uid
/// and gid 0, which are mapped to the caller.
pub(crate) fn enter() -> Result<bool> {
    let (uid, gid) = (geteuid(), getegid());
    let private = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET;
    if uid.is_root() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").at("read", "/proc/self/mountinfo")?;
        let entered = match covered_proc(&mounts) {
            Some(path) => Err(io::Error::other(format!("{path} is mounted over, as in a container"))),
            None => enter_same_users(),
        };
        if let Err(error) = entered {
            log(&format!("machines run without a user namespace: {error}"));
        }
    }
    match unshare(private) {
        Ok(()) => (),
        Err(Errno::EPERM) => {
            unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| forbidden("a user namespace", errno))?;
            // The kernel requires that setgroups is denied before an unprivileged process maps its group.
            for (file, line) in [
                ("/proc/self/setgroups", "deny".to_owned()),
                ("/proc/self/uid_map", format!("0 {uid} 1")),
                ("/proc/self/gid_map", format!("0 {gid} 1")),
            ] {
                fs::write(file, line).at("write", file)?;
            }
            unshare(private).map_err(|errno| forbidden("mount and network namespaces", errno))?;
        }
        Err(errno) => return Err(forbidden("mount and network namespaces", errno)),
    }
    // Slave, not private: a mount that the host removes later must disappear here as well.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|errno| forbidden("private mounts", errno))?;
    let map = fs::read_to_string("/proc/self/uid_map").at("read", "/proc/self/uid_map")?;
    Ok(mapped_ids(&map) == 1)
}

/// Returns a mount that covers a part of `/proc`, if there is one. The kernel lets a user namespace mount a new
/// `/proc`, as each machine needs it, only if the existing one is completely visible.
fn covered_proc(mountinfo: &str) -> Option<&str> {
    // These are empty directories that exist only as mount points.
    let harmless = ["/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd"];
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .find(|path| path.starts_with("/proc/") && !harmless.contains(path))
}

/// Enters a user namespace with the same users. Its map must be written from outside, so a child process creates it and
/// waits while this process writes the map and joins the namespace.
fn enter_same_users() -> io::Result<()> {
    let (mut result, mut report) = io::pipe()?;
    let (mut released, release) = io::pipe()?;
    match sys::fork()? {
        ForkResult::Child => {
            drop((result, release));
            let outcome = unshare(CloneFlags::CLONE_NEWUSER).err().map_or(0, |errno| errno as i32);
            let _ = report.write_all(&outcome.to_ne_bytes());
            // Waits until the other side closes.
            let _ = released.read(&mut [0]);
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            drop((report, released));
            let mut outcome = [0; 4];
            let joined = result.read_exact(&mut outcome).and_then(|()| match i32::from_ne_bytes(outcome) {
                0 => join_same_users(Path::new("/proc").join(child.to_string())),
                errno => Err(io::Error::from_raw_os_error(errno)),
            });
            drop(release);
            waitpid(child, None)?;
            joined
        }
    }
}

fn join_same_users(process: PathBuf) -> io::Result<()> {
    for map in ["uid_map", "gid_map"] {
        let own = fs::read_to_string(Path::new("/proc/self").join(map))?;
        fs::write(process.join(map), same_ids(&own))?;
    }
    setns(fs::File::open(process.join("ns/user"))?, CloneFlags::CLONE_NEWUSER).map_err(io::Error::from)
}

/// Returns the map for a namespace with the same ids as this one. `map` is the map of this namespace.
fn same_ids(map: &str) -> String {
    map.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (first, count) = (words.next()?, words.nth(1)?);
            Some(format!("{first} {first} {count}\n"))
        })
        .collect()
}

fn mapped_ids(map: &str) -> u64 {
    map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

fn forbidden(what: &str, errno: Errno) -> Error {
    let setting = |name: &str| {
        fs::read_to_string(Path::new("/proc/sys").join(name.replace('.', "/")))
            .map(|text| text.trim().to_owned())
            .ok()
    };
    Error::Unsupported(forbidden_text(what, &cause(errno), setting))
}

/// The kernel also returns ENOSPC if a limit on namespaces or mounts is reached. Its usual message, `No space left on
/// device`, would be misleading.
fn cause(errno: Errno) -> String {
    match errno {
        Errno::ENOSPC => "ENOSPC: a kernel limit is reached".to_owned(),
        errno => errno.to_string(),
    }
}

/// Names the kernel setting that forbids namespaces, if it can be determined.
fn forbidden_text(what: &str, cause: &str, setting: impl Fn(&str) -> Option<String>) -> String {
    let advice = [
        ("user.max_user_namespaces", "0", "set it to 10000 with `sysctl -w user.max_user_namespaces=10000`"),
        (
            "kernel.unprivileged_userns_clone",
            "0",
            "set it to 1 with `sysctl -w kernel.unprivileged_userns_clone=1`",
        ),
        (
            "kernel.apparmor_restrict_unprivileged_userns",
            "1",
            "set it to 0 with `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
        ),
    ]
    .into_iter()
    .find(|(name, bad, _)| setting(name).as_deref() == Some(bad))
    .map_or_else(
        || "allow unprivileged user namespaces for this user or container, or run Drover as root".to_owned(),
        |(name, bad, fix)| format!("{name} is {bad}: {fix}, or run Drover as root"),
    );
    format!("local machines need {what}, which this host does not allow ({cause}); {advice}")
}

/// Checks, inside the namespaces, whether `root` supports the disks of machines, by mounting an overlay.
pub(crate) fn probe_disk(root: &Path, probe: &Path) -> Result<()> {
    let flags = statvfs(root).at("examine", root)?.flags();
    if flags.contains(FsFlags::ST_NOEXEC) {
        return Err(unfit(root, "it is mounted noexec, but machines run programs from it"));
    }
    if flags.contains(FsFlags::ST_RDONLY) {
        return Err(unfit(root, "it is mounted read-only"));
    }
    let kind = kind_of(statfs(root).at("examine", root)?.filesystem_type());
    remove_tree(probe)?;
    for directory in ["upper", "work", "merged"] {
        private_dir(&probe.join(directory))?;
    }
    let outcome = mount_probe(probe);
    remove_tree(probe)?;
    outcome.map_err(|error| {
        let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        unfit(root, &format!("its file system{kind} cannot be the upper layer of an overlay: {error}"))
    })
}

fn mount_probe(probe: &Path) -> io::Result<()> {
    sys::set_opaque(&probe.join("upper"))?;
    mount_overlay(Path::new("/etc"), probe, "upper", "work", &probe.join("merged"))?;
    let written = fs::write(probe.join("merged/drover-probe"), "");
    umount2(&probe.join("merged"), MntFlags::MNT_DETACH)?;
    written
}

/// Mounts an overlay on the host directory `lower`. Layers are relative to `disk`, so that no character in the path of
/// the data directory has a special meaning for overlayfs. Uses `userxattr` also for root, so that the layout is the
/// same for all users.
pub(crate) fn mount_overlay(
    lower: &Path,
    disk: &Path,
    upper: &str,
    work: &str,
    target: &Path,
) -> io::Result<()> {
    let before = std::env::current_dir().unwrap_or_else(|_| "/".into());
    std::env::set_current_dir(disk)?;
    let options = format!("lowerdir={},upperdir={upper},workdir={work},userxattr", lower.display());
    // Setuid files and device nodes of the host have no effect in a machine.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let mounted = mount(Some("overlay"), target, Some("overlay"), flags, Some(options.as_str()));
    std::env::set_current_dir(before)?;
    mounted.map_err(io::Error::from)
}

fn unfit(root: &Path, cause: &str) -> Error {
    Error::Unsupported(format!(
        "the data directory {} cannot hold local machines: {cause}; choose another with --data-dir, on a local disk \
         (ext4, xfs, btrfs) or tmpfs",
        root.display()
    ))
}

fn kind_of(kind: FsType) -> Option<&'static str> {
    match kind {
        OVERLAYFS_SUPER_MAGIC => Some("itself an overlay, as in a container"),
        NFS_SUPER_MAGIC => Some("NFS"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_kernel_setting_and_the_fix() {
        let text = forbidden_text("a user namespace", &cause(Errno::ENOSPC), |name| {
            (name == "user.max_user_namespaces").then(|| "0".to_owned())
        });
        assert!(text.contains("user.max_user_namespaces is 0: set it to 10000"), "{text}");
        assert!(text.contains("ENOSPC") && !text.contains("No space left"), "{text}");
        let text = forbidden_text("a user namespace", "EPERM", |_| None);
        assert!(text.contains("EPERM") && text.contains("run Drover as root"), "{text}");
    }

    #[test]
    fn map_has_the_same_ids_inside_and_outside() {
        assert_eq!(same_ids("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(same_ids("0 1000 1\n1 100000 65536\n"), "0 0 1\n1 1 65536\n");
    }

    #[test]
    fn mounts_over_proc_in_a_container_are_detected() {
        let host =
            "22 1 0:20 / /proc rw - proc proc rw\n30 22 0:28 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n";
        assert_eq!(covered_proc(host), None);
        let container = format!("{host}31 22 0:20 /sys /proc/sys ro - proc proc rw\n");
        assert_eq!(covered_proc(&container), Some("/proc/sys"));
    }

    #[test]
    fn one_mapped_id_means_a_non_root_user() {
        assert_eq!(mapped_ids("         0      54321          1\n"), 1);
        assert_eq!(mapped_ids("         0          0 4294967295\n"), 4_294_967_295);
    }
}
