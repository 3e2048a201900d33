//! The `/dev`, `/proc` and `/sys` of a machine, without the parts that belong to the host.
//!
//! Everything is mounted before the root changes. Afterwards nothing can be mounted.

use std::{fs, io, os::unix::fs::symlink, path::Path};

use nix::mount::{MsFlags, mount};

use super::rootfs::{mount_point, own_directory, tmpfs};
use crate::{
    cgroup::Group,
    error::{At, Error, Result},
    sys,
};

/// Devices that every program expects. These are the devices of the host, bound read-only: they can be written to, but
/// their modes and owners cannot be changed.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

/// Hidden, as by container runtimes: they show information about the host, or change it.
const MASKED: &[&str] = &[
    "proc/acpi",
    "proc/asound",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/kmsg",
    "proc/kpagecount",
    "proc/kpagecgroup",
    "proc/kpageflags",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/vmcore",
    "sys/devices/virtual/powercap",
    "sys/firmware",
];

/// File systems of the host that are mounted below a `/sys` that can only be bound.
const HOST_MOUNTS: &[&str] = &[
    "fs/bpf",
    "fs/cgroup",
    "fs/fuse/connections",
    "fs/pstore",
    "fs/selinux",
    "kernel/config",
    "kernel/debug",
    "kernel/security",
    "kernel/tracing",
];

pub(super) fn devices(root: &Path) -> Result<()> {
    let dev = own_directory(root, "dev")?;
    tmpfs(&dev, "mode=755,size=64m")?;
    for name in DEVICES {
        let (source, target) = (Path::new("/dev").join(name), dev.join(name));
        mount_point(&target, false).at("create", &target)?;
        show_device(&source, &target)?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(link)).at("link", dev.join(link))?;
    }
    for name in ["pts", "shm"] {
        fs::create_dir(dev.join(name)).at("create directory", dev.join(name))?;
    }
    tmpfs(&dev.join("shm"), "mode=1777")?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("devpts"), &dev.join("pts"), Some("devpts"), flags, Some(options)).at("mount", "/dev/pts")
}

/// Mounts `/proc` and `/sys`. Requires the machine's `/dev`, because hidden files are replaced by its `/dev/null`.
pub(super) fn kernel(root: &Path, group: Option<&Group>) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let proc = own_directory(root, "proc")?;
    mount(Some("proc"), &proc, Some("proc"), flags, None::<&str>).map_err(|errno| {
        Error::Unsupported(format!(
            "cannot mount /proc in a machine ({errno}); inside a container, run it with an unmasked /proc \
             (`--security-opt systempaths=unconfined`), or run Drover outside"
        ))
    })?;
    let sys = own_directory(root, "sys")?;
    let fresh = mount(Some("sysfs"), &sys, Some("sysfs"), flags | MsFlags::MS_RDONLY, None::<&str>);
    if fresh.is_err() {
        // A non-root user cannot mount a new sysfs if parts of /sys are hidden, but can bind the existing one.
        show_read_only(Path::new("/sys"), &sys)?;
        for path in HOST_MOUNTS {
            mask(root, &Path::new("sys").join(path))?;
        }
    }
    only_processes(&proc)?;
    for path in MASKED {
        mask(root, Path::new(path))?;
    }
    group.map_or(Ok(()), |group| show_group(&sys.join("fs/cgroup"), group))
}

/// Makes everything in `/proc` read-only except the machine's processes. Container runtimes list known dangerous files
/// (`sys`, `sysrq-trigger`, `irq`, `bus`, `fs`). But root could also change the mode of `meminfo`, which is the same
/// file on the host, and new kernels add files.
fn only_processes(proc: &Path) -> Result<()> {
    for entry in fs::read_dir(proc).at("list", proc)? {
        let entry = entry.at("list", proc)?;
        let process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        // Links such as `self` and `mounts` point to processes.
        let link = entry.file_type().at("examine", entry.path())?.is_symlink();
        if !process && !link {
            show_read_only(&entry.path(), &entry.path())?;
        }
    }
    Ok(())
}

/// Programs read their limits here. They see their own subtree and cannot change it.
fn show_group(target: &Path, group: &Group) -> Result<()> {
    if group.unified || !target.exists() {
        return if target.exists() { show_read_only(&group.path, target) } else { Ok(()) };
    }
    tmpfs(target, "mode=755,size=64k")?;
    let pids = target.join("pids");
    fs::create_dir(&pids).at("create directory", &pids)?;
    show_read_only(&group.path, &pids)?;
    show_read_only(target, target)
}

/// Replaces a file by `/dev/null` and a directory by an empty one. A path that the kernel does not have is skipped.
fn mask(root: &Path, path: &Path) -> Result<()> {
    let path = root.join(path);
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(meta) if meta.is_dir() => {
            tmpfs(&path, "mode=555,size=4k")?;
            show_read_only(&path, &path)
        }
        _ => show_device(&root.join("dev/null"), &path),
    }
}

fn show_device(source: &Path, target: &Path) -> Result<()> {
    let device = sys::detached_device(source).at("bind", source)?;
    sys::attach(&device, target).at("mount on", target)
}

fn show_read_only(source: &Path, target: &Path) -> Result<()> {
    let tree = sys::detached_read_only(source).at("bind", source)?;
    sys::attach(&tree, target).at("mount on", target)
}
