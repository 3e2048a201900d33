//! The file system of a machine, put together in its own mount namespace and then made its root.

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

use super::{
    super::{
        error::{At, Result},
        holder::{
            disk::{EXE_IN_MACHINE, overlaid},
            say,
        },
        namespace::mount_overlay,
        protocol::BootConfig,
        sys,
    },
    kernel,
};

/// Builds the root and changes into it. On return nothing of the host is reachable but what the machine shall see.
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
    // Detached copies now, while the host is still in sight; attached later, when names lead nowhere but inside.
    let mut trees: Vec<(OwnedFd, PathBuf, bool)> = Vec::new();
    let exe = sys::detached_read_only(&config.exe).at("bind", &config.exe)?;
    trees.push((exe, EXE_IN_MACHINE.into(), false));
    for wanted in &config.mounts {
        let tree = sys::detached_read_only(&wanted.source).at("bind", &wanted.source)?;
        trees.push((tree, wanted.target.clone(), wanted.source.is_dir()));
    }
    kernel::devices(&root)?;
    // From here on the machine's group is the root of what it can name. A kernel without groups has nothing to hide.
    match unshare(CloneFlags::CLONE_NEWCGROUP) {
        Ok(()) | Err(Errno::EINVAL) => (),
        Err(errno) => return Err(errno).at("make", "a cgroup namespace"),
    }
    kernel::kernel(&root, config.group.as_ref())?;
    chdir(&root).at("change to", &root)?;
    pivot_root(".", ".").at("make root of", &root)?;
    umount2(".", MntFlags::MNT_DETACH).at("let go of", "the host's root")?;
    chdir("/").at("change to", "/")?;
    for (tree, target, directory) in &trees {
        mount_point(target, *directory).at("make", target)?;
        sys::attach(tree, target).at("mount on", target)?;
    }
    let null = File::open("/dev/null").at("open", "/dev/null")?;
    // The one that the holder gave was opened on the host.
    dup2_stdin(&null).at("redirect", "input")?;
    furnish()
}

/// Mounts the overlay of one top-level directory of the host.
fn overlay(config: &BootConfig, root: &Path, run: &Path, top: &str) -> Result<()> {
    let (host, target) = (Path::new("/").join(top), own_directory(root, top)?);
    let (upper, work) = (format!("upper/{top}"), format!("work/{top}"));
    let over = |lower: &Path| mount_overlay(lower, &config.disk, &upper, &work, &target);
    if top == "etc" && !config.only_root {
        let shown = public_view(&host, run).and_then(|view| {
            // Named from the disk, see `mount_overlay`.
            let outcome = over(Path::new("fs/run/public"));
            // The overlay keeps it; nobody else has to see it.
            umount2(&view, MntFlags::MNT_DETACH)?;
            outcome
        });
        for directory in ["public", "empty"] {
            let _ = fs::remove_dir(run.join(directory));
        }
        match shown {
            Ok(()) => return Ok(()),
            // The kernel stacks two overlays and no more: on a host whose /etc is one, this is one too many.
            Err(error) => say(&format!("{} is shown with all that root may read: {error}", host.display())),
        }
    }
    over(&host).at("mount an overlay on", target)
}

/// A read-only view of a directory of the host that shows only what everybody on the host may read: root of a machine is
/// root of the host to the kernel, and would read passwords and private keys. An overlay looks at its layers with the
/// rights of whoever mounted it, so it is mounted by a process that has given up its own.
fn public_view(host: &Path, run: &Path) -> io::Result<PathBuf> {
    let view = run.join("public");
    fs::create_dir(&view)?;
    // An overlay without an upper layer needs two lower ones.
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

/// A directory of the machine's own root. Whatever else the machine put there gives way, links above all: they would
/// lead out, because the root is not yet the root.
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
