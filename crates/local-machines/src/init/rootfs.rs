//! Builds the file system of a machine in its own mount namespace and makes it the root.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    unistd::{chdir, dup2_stdin, pivot_root},
};

use super::kernel;
use crate::{
    error::{At, Result},
    holder::{
        disk::{EXE_IN_MACHINE, overlaid},
        log,
    },
    namespace::mount_overlay,
    protocol::BootConfig,
    sys,
};

/// Builds the root and changes into it. Afterwards only the intended parts of the host are reachable.
pub(crate) fn enter(config: &BootConfig) -> Result<()> {
    let root = config.disk.join("fs");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .at("make private", "/")?;
    bind(&root, &root, MsFlags::MS_BIND)?;
    sys::restrict_mount(&root).at("restrict", &root)?;
    let run = own_directory(&root, "run")?;
    tmpfs(&run, "mode=755")?;
    for top in overlaid() {
        overlay(config, &root, &run, top)?;
    }
    // Detached copies are created now, while the host's paths are reachable, and attached later, when paths can only
    // lead to files inside.
    let mut trees: Vec<(OwnedFd, PathBuf, bool)> = Vec::new();
    let exe = sys::detached_read_only(&config.exe).at("bind", &config.exe)?;
    trees.push((exe, EXE_IN_MACHINE.into(), false));
    for wanted in &config.mounts {
        let tree = sys::detached_read_only(&wanted.source).at("bind", &wanted.source)?;
        trees.push((tree, wanted.target.clone(), wanted.source.is_dir()));
    }
    kernel::devices(&root)?;
    // From here on, the machine's group is the root of its cgroup namespace. A kernel without cgroup namespaces has
    // nothing to hide.
    match unshare(CloneFlags::CLONE_NEWCGROUP) {
        Ok(()) | Err(Errno::EINVAL) => (),
        Err(errno) => return Err(errno).at("create", "a cgroup namespace"),
    }
    kernel::kernel(&root, config.group.as_ref())?;
    chdir(&root).at("change to", &root)?;
    pivot_root(".", ".").at("make root of", &root)?;
    umount2(".", MntFlags::MNT_DETACH).at("unmount", "the host's root")?;
    chdir("/").at("change to", "/")?;
    for (tree, target, directory) in &trees {
        mount_point(target, *directory).at("create", target)?;
        sys::attach(tree, target).at("mount on", target)?;
    }
    let null = File::open("/dev/null").at("open", "/dev/null")?;
    // The stdin that the holder passed was opened on the host.
    dup2_stdin(&null).at("redirect", "input")?;
    create_runtime_directories()
}

/// Mounts the overlay of one top-level directory of the host.
fn overlay(config: &BootConfig, root: &Path, run: &Path, top: &str) -> Result<()> {
    let (host, target) = (Path::new("/").join(top), own_directory(root, top)?);
    let (upper, work) = (format!("upper/{top}"), format!("work/{top}"));
    let over = |lower: &Path| mount_overlay(lower, &config.disk, &upper, &work, &target);
    if top == "etc" && !config.only_root {
        let shown = public_view(&host, run).and_then(|view| {
            // The path is relative to the disk, see `mount_overlay`.
            let outcome = over(Path::new("fs/run/public"));
            // The overlay keeps a reference, and the mount itself must not be visible.
            umount2(&view, MntFlags::MNT_DETACH)?;
            outcome
        });
        for directory in ["public", "empty"] {
            let _ = fs::remove_dir(run.join(directory));
        }
        match shown {
            Ok(()) => return Ok(()),
            // The kernel allows two stacked overlays. If the host's /etc is an overlay, this is the third.
            Err(error) => {
                log(&format!("{} is visible with all files that root can read: {error}", host.display()))
            }
        }
    }
    over(&host).at("mount an overlay on", target)
}

/// Mounts a read-only view of a directory of the host that shows only files that are readable for everyone. For the
/// kernel, root of a machine is root of the host and could read passwords and private keys. An overlay accesses its
/// layers with the permissions of the process that mounted it, so a process without permissions mounts it.
fn public_view(host: &Path, run: &Path) -> io::Result<PathBuf> {
    let view = run.join("public");
    fs::create_dir(&view)?;
    // An overlay without an upper layer needs two lower layers.
    fs::create_dir(run.join("empty"))?;
    let options = format!("lowerdir={}:empty,userxattr", host.display());
    sys::in_child_as_nobody(|| {
        chdir(run)?;
        Ok(move || {
            let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("overlay"), "public", Some("overlay"), flags, Some(options.as_str()))
        })
    })?;
    Ok(view)
}

/// Creates a directory in the machine's root. Removes anything else with this name: links above all, which could lead
/// out, because the machine's root is not the root yet.
pub(super) fn own_directory(root: &Path, name: &str) -> Result<PathBuf> {
    let path = root.join(name);
    match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => return Ok(path),
        Ok(_) => fs::remove_file(&path).at("remove", &path)?,
        Err(_) => (),
    }
    fs::create_dir(&path).at("create directory", &path)?;
    Ok(path)
}

/// Creates the directories of a running system in `/run`, `/tmp` and `/var`. The root is already the machine's own.
fn create_runtime_directories() -> Result<()> {
    for directory in ["/run/lock", "/run/systemd/system", "/run/drover", "/var/log/units", "/tmp"] {
        fs::create_dir_all(directory).at("create directory", directory)?;
    }
    // /tmp is emptied at each boot.
    if let Ok(entries) = fs::read_dir("/tmp") {
        for entry in entries.flatten() {
            let _ = crate::layout::remove_tree(&entry.path());
        }
    }
    Ok(())
}

pub(super) fn tmpfs(target: &Path, options: &str) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options)).at("mount tmpfs on", target)
}

fn bind(source: &Path, target: &Path, flags: MsFlags) -> Result<()> {
    mount(Some(source), target, None::<&str>, flags, None::<&str>).at("bind", source)
}

pub(super) fn mount_point(path: &Path, directory: bool) -> io::Result<()> {
    if directory {
        return fs::create_dir_all(path);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::options().create(true).truncate(false).write(true).open(path).map(drop)
}
