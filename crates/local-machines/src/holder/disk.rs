//! Creates the disk of a new machine.
//!
//! The upper layers contain from the start every directory and file that the machine may change, because in the overlay
//! of a non-root user nothing of the lower layer can be changed (its owners do not exist there).
//!
//! This runs only while the record's phase is `Creating`, before the first boot of the machine. Afterwards programs in
//! the machine can create links on the disk, which the holder must not follow.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use crate::{
    error::{At, Result},
    layout::MachineLayout,
    protocol::Record,
    sys,
};

/// The path of Drover's executable in a machine, for the shims.
pub(crate) const EXE_IN_MACHINE: &str = "/usr/lib/drover/drover";
/// Exists after the install script has succeeded.
pub(crate) const INSTALL_DONE: &str = "var/lib/drover/install-done";

/// Directories below `/` on the machine's own disk.
const OWN: &[(&str, u32)] = &[
    ("boot", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("root/.ssh", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/lib/drover", 0o700),
    ("var/log", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];

/// Directories that are links into `/usr` in some distributions.
const LINKED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Directories that are empty in a new machine, whatever the host has there.
const FRESH: &[&str] = &[
    "/usr/local",
    "/etc/cni",
    "/etc/containerd",
    "/etc/default",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers.d",
    "/etc/sysconfig",
    "/etc/systemd/system",
];

/// Writable directories that show the content of the host.
const SHARED: &[&str] = &[
    "/usr/bin",
    "/usr/lib",
    "/usr/lib/systemd",
    "/usr/lib/systemd/system",
    "/usr/libexec",
    "/usr/sbin",
    "/usr/share",
    "/usr/src",
    "/etc/NetworkManager",
    "/etc/NetworkManager/conf.d",
    "/etc/alternatives",
    "/etc/bash_completion.d",
    "/etc/ca-certificates",
    "/etc/ca-certificates/update.d",
    "/etc/cron.d",
    "/etc/init.d",
    "/etc/ld.so.conf.d",
    "/etc/logrotate.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/pki",
    "/etc/profile.d",
    "/etc/security",
    "/etc/security/limits.d",
    "/etc/ssl",
    "/etc/ssl/certs",
    "/etc/sysctl.d",
    "/etc/systemd",
    "/etc/tmpfiles.d",
    "/etc/udev",
    "/etc/udev/rules.d",
];

/// Directories below those of `FRESH`.
const WITHIN_FRESH: &[&str] = &[
    "/usr/local/bin",
    "/usr/local/etc",
    "/usr/local/include",
    "/usr/local/lib",
    "/usr/local/lib/systemd/system",
    "/usr/local/sbin",
    "/usr/local/share",
    "/usr/local/src",
    "/etc/cni/net.d",
    "/etc/systemd/system/multi-user.target.wants",
    "/usr/lib/drover",
];

/// Top-level directories of the host that are the lower layer of an overlay in machines.
pub(crate) fn overlaid() -> Vec<&'static str> {
    let real = |top: &&str| fs::symlink_metadata(Path::new("/").join(top)).is_ok_and(|meta| meta.is_dir());
    ["usr", "etc"].into_iter().chain(LINKED.iter().copied().filter(real)).collect()
}

/// Creates the disk of a machine, or the missing parts of it.
pub(crate) fn prepare(layout: &MachineLayout, record: &Record) -> Result<()> {
    let root = layout.fs();
    directory(&root, 0o755)?;
    for (path, mode) in OWN {
        directory(&root.join(path), *mode)?;
    }
    for (link, target) in [("var/run", "/run"), ("var/lock", "/run/lock")] {
        link_to(&root.join(link), target)?;
    }
    for top in LINKED {
        let Ok(meta) = fs::symlink_metadata(Path::new("/").join(top)) else { continue };
        if meta.is_symlink() {
            let target = fs::read_link(Path::new("/").join(top)).at("read", *top)?;
            link_to(&root.join(top), target)?;
        } else {
            directory(&root.join(top), 0o755)?;
        }
    }
    let uppers = Uppers { layout, tops: overlaid() };
    for top in &uppers.tops {
        directory(&layout.upper(top), 0o755)?;
        directory(&layout.work(top), 0o700)?;
    }
    for path in SHARED.iter().chain(FRESH).chain(WITHIN_FRESH) {
        uppers.directory(path)?;
    }
    for path in FRESH {
        if let Some(upper) = uppers.find(path) {
            sys::set_opaque(&upper).at("hide the host's content of", &upper)?;
        }
    }
    configuration(&uppers, record)?;
    shims(&uppers)?;
    install(&root, &uppers, record)
}

fn configuration(uppers: &Uppers<'_>, record: &Record) -> Result<()> {
    let mut hosts = format!(
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{} {}\n",
        record.ip, record.hostname
    );
    for (name, address) in &record.options.hosts {
        hosts.push_str(&format!("{address} {name}\n"));
    }
    uppers.file("/etc/hosts", hosts.as_bytes(), 0o644)?;
    uppers.file("/etc/hostname", format!("{}\n", record.hostname).as_bytes(), 0o644)?;
    uppers.file("/etc/machine-id", format!("{}\n", record.machine_id).as_bytes(), 0o444)?;
    uppers.file(
        "/etc/resolv.conf",
        b"# Local machines have no access to other networks, and no name server.\n",
        0o644,
    )?;
    uppers.file("/etc/fstab", b"", 0o644)?;
    uppers.file("/etc/ld.so.cache", &fs::read("/etc/ld.so.cache").unwrap_or_default(), 0o644)?;
    // The users are those of the host, without their passwords.
    for (path, otherwise) in
        [("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("/etc/group", "root:x:0:\n")]
    {
        let content = fs::read(path).unwrap_or_else(|_| otherwise.into());
        uppers.file(path, &content, 0o644)?;
    }
    uppers.file("/etc/shadow", b"root:*:19700:0:99999:7:::\n", 0o600)?;
    uppers.file("/etc/gshadow", b"root:*::\n", 0o600)
}

fn shims(uppers: &Uppers<'_>) -> Result<()> {
    uppers.file(EXE_IN_MACHINE, b"", 0o755)?;
    let call = |name: &str| format!("#!/bin/sh\nexec {EXE_IN_MACHINE} machine-shim {name} \"$@\"\n");
    for (directory, name) in [
        ("bin", "systemctl"),
        ("bin", "journalctl"),
        ("sbin", "shutdown"),
        ("sbin", "poweroff"),
        ("sbin", "halt"),
        ("sbin", "reboot"),
    ] {
        uppers.program(directory, name, &call(name))?;
    }
    // Programs of the host below /usr/local are not visible in a machine.
    if !["/usr/bin/curl", "/bin/curl"].iter().any(|path| Path::new(path).exists()) {
        uppers.program("bin", "curl", &call("curl"))?;
    }
    // The host's sudo belongs to a user that does not exist in a non-root user's machine. All programs run as root
    // anyway.
    uppers.program("bin", "sudo", SUDO)
}

const SUDO: &str = r#"#!/bin/sh
# All programs of a local machine run as root: skips the options of sudo and runs the command.
while [ $# -gt 0 ]; do
    case "$1" in
        -u | -g | -h | -p | -C | -T) shift 2 ;;
        --) shift; break ;;
        -*) shift ;;
        *=*) export "$1"; shift ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || set -- "${SHELL:-/bin/sh}"
exec "$@"
"#;

/// The install script is an ordinary unit, so that its log, state and retries need no extra code.
fn install(root: &Path, uppers: &Uppers<'_>, record: &Record) -> Result<()> {
    let options = &record.options;
    if !options.authorized_key.is_empty() {
        write(
            &root.join("root/.ssh/authorized_keys"),
            format!("{}\n", options.authorized_key).as_bytes(),
            0o600,
        )?;
    }
    if options.install_script.is_empty() {
        return Ok(());
    }
    write(&root.join("var/lib/drover/install.sh"), options.install_script.as_bytes(), 0o700)?;
    uppers.file("/etc/systemd/system/drover-install.service", INSTALL_UNIT.as_bytes(), 0o644)?;
    let Some(wants) = uppers.find("/etc/systemd/system/multi-user.target.wants") else { return Ok(()) };
    link_to(&wants.join("drover-install.service"), "/etc/systemd/system/drover-install.service")
}

const INSTALL_UNIT: &str = "\
[Unit]
Description=Install script of this machine, until it has succeeded once
ConditionPathExists=!/var/lib/drover/install-done
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=process
WorkingDirectory=/root
TimeoutStartSec=infinity
Restart=on-failure
RestartSec=5
ExecStart=/bin/sh /var/lib/drover/install.sh
ExecStart=/bin/touch /var/lib/drover/install-done

[Install]
WantedBy=multi-user.target
";

struct Uppers<'a> {
    layout: &'a MachineLayout,
    tops: Vec<&'static str>,
}

impl Uppers<'_> {
    /// Returns the path in an upper layer that corresponds to `path`. The longest prefix that exists on the host is
    /// resolved first, so that a link such as `/usr/sbin -> bin` is not hidden by a new directory.
    fn find(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let known = path.ancestors().find(|part| part.exists())?;
        // The last component of a file is replaced, not followed: /etc/resolv.conf is often a link to a file outside of
        // /etc.
        let mut real = fs::canonicalize(known).ok()?;
        real.push(path.strip_prefix(known).ok()?);
        let relative = real.strip_prefix("/").ok()?;
        let top = relative.components().next()?.as_os_str().to_str()?;
        self.tops.contains(&top).then(|| self.layout.disk().join("upper").join(relative))
    }

    fn directory(&self, path: &str) -> Result<()> {
        self.find(path).map_or(Ok(()), |upper| directory(&upper, 0o755))
    }

    fn file(&self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let path = Path::new(path);
        let (Some(parent), Some(name)) = (path.parent().and_then(Path::to_str), path.file_name()) else {
            return Ok(());
        };
        self.find(parent).map_or(Ok(()), |upper| write(&upper.join(name), content, mode))
    }

    /// Creates a program in `/usr/bin` or `/usr/sbin`, and also in `/bin` or `/sbin` if those are separate directories.
    fn program(&self, directory: &str, name: &str, script: &str) -> Result<()> {
        self.file(&format!("/usr/{directory}/{name}"), script.as_bytes(), 0o755)?;
        if self.tops.contains(&directory) {
            self.file(&format!("/{directory}/{name}"), script.as_bytes(), 0o755)?;
        }
        Ok(())
    }
}

fn directory(path: &Path, mode: u32) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).at("create directory", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("set mode of", path)
}

fn link_to(path: &Path, target: impl AsRef<Path>) -> Result<()> {
    match symlink(target, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.at("link", path),
    }
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    use std::io::Write;
    // An interrupted create may have left a partial file that is read-only, so it is replaced.
    let _ = fs::remove_file(path);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).at("write", path)?;
    file.write_all(content).at("write", path)?;
    file.set_permissions(fs::Permissions::from_mode(mode)).at("set mode of", path)
}
