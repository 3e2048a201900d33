//! The file system of a machine, put together in its own mount namespace and then made its root.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::symlink},
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::{chdir, pivot_root},
};

use super::super::{
    error::{At, Error, Result},
    holder::disk::{EXE_IN_MACHINE, overlaid},
    namespace::mount_overlay,
    protocol::BootConfig,
    sys,
};

/// Devices that every program expects. They are the host's own, bound: nobody but root can make new ones.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Devices that are nice to have, where the host has them.
const MORE_DEVICES: &[&str] = &["kmsg", "fuse", "net/tun"];

/// Builds the root and changes into it. On return nothing of the host is reachable but what the machine shall see.
pub(crate) fn enter(config: &BootConfig) -> Result<()> {
    let root = config.disk.join("fs");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .at("make private", "/")?;
    bind(&root, &root, MsFlags::MS_BIND)?;
    for top in overlaid() {
        let target = own_directory(&root, top)?;
        mount_overlay(
            &Path::new("/").join(top),
            &config.disk,
            &format!("upper/{top}"),
            &format!("work/{top}"),
            &target,
        )
        .at("mount an overlay on", target)?;
    }
    // Detached copies now, while the host is still in sight; attached later, when names lead nowhere but inside.
    let mut trees: Vec<(OwnedFd, PathBuf, bool)> = Vec::new();
    let exe = sys::detached_read_only(&config.exe).at("bind", &config.exe)?;
    trees.push((exe, EXE_IN_MACHINE.into(), false));
    for wanted in &config.mounts {
        let tree = sys::detached_read_only(&wanted.source).at("bind", &wanted.source)?;
        trees.push((tree, wanted.target.clone(), wanted.source.is_dir()));
    }
    devices(&root)?;
    kernel(&root)?;
    let run = own_directory(&root, "run")?;
    tmpfs(&run, "mode=755")?;
    chdir(&root).at("change to", &root)?;
    pivot_root(".", ".").at("make root of", &root)?;
    umount2(".", MntFlags::MNT_DETACH).at("let go of", "the host's root")?;
    chdir("/").at("change to", "/")?;
    for (tree, target, directory) in &trees {
        mount_point(target, *directory).at("make", target)?;
        sys::attach(tree, target).at("mount on", target)?;
    }
    furnish()
}

/// A directory of the machine's own root. Whatever else the machine put there gives way, links above all: they would
/// lead out, because the root is not yet the root.
fn own_directory(root: &Path, name: &str) -> Result<PathBuf> {
    let path = root.join(name);
    match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => return Ok(path),
        Ok(_) => fs::remove_file(&path).at("remove", &path)?,
        Err(_) => (),
    }
    fs::create_dir(&path).at("create directory", &path)?;
    Ok(path)
}

fn devices(root: &Path) -> Result<()> {
    let dev = own_directory(root, "dev")?;
    tmpfs(&dev, "mode=755")?;
    for (names, needed) in [(DEVICES, true), (MORE_DEVICES, false)] {
        for name in names {
            let (source, target) = (Path::new("/dev").join(name), dev.join(name));
            if !needed && !source.exists() {
                continue;
            }
            mount_point(&target, false).at("make", &target)?;
            bind(&source, &target, MsFlags::MS_BIND)?;
        }
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

fn kernel(root: &Path) -> Result<()> {
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
        // A masked /sys cannot be mounted anew by an ordinary user, but it can be shown as it is.
        bind(Path::new("/sys"), &sys, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    } else if Path::new("/sys/fs/cgroup").exists() {
        // Programs look here to learn about their limits; what they may change is the host's decision.
        let _ = bind(Path::new("/sys/fs/cgroup"), &sys.join("fs/cgroup"), MsFlags::MS_BIND | MsFlags::MS_REC);
    }
    Ok(())
}

/// What a running system finds below `/run`, `/tmp` and `/var`. The root is the machine's own by now.
fn furnish() -> Result<()> {
    for directory in ["/run/lock", "/run/systemd/system", "/run/drover", "/var/log/units", "/tmp"] {
        fs::create_dir_all(directory).at("create directory", directory)?;
    }
    // /tmp lasts from boot to boot, as on any host.
    if let Ok(entries) = fs::read_dir("/tmp") {
        for entry in entries.flatten() {
            let _ = super::super::layout::remove_tree(&entry.path());
        }
    }
    Ok(())
}

fn tmpfs(target: &Path, options: &str) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options)).at("mount tmpfs on", target)
}

fn bind(source: &Path, target: &Path, flags: MsFlags) -> Result<()> {
    mount(Some(source), target, None::<&str>, flags, None::<&str>).at("bind", source)
}

fn mount_point(path: &Path, directory: bool) -> io::Result<()> {
    if directory {
        return fs::create_dir_all(path);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::options().create(true).truncate(false).write(true).open(path).map(drop)
}
