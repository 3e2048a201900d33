//! A program in a machine that tries to change its host.
//!
//! It prints a line `BREACH …` for every attempt that is not rejected. The attempts are harmless: they write the
//! current value of a setting or the current mode of a device, and pass arguments to system calls that are invalid for
//! another reason than a missing permission.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fs,
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::libc::{self, c_long};

use super::calls;

/// Information about the host that the test passes to the program.
#[derive(Debug, Default)]
pub struct Host {
    /// A process that is not in the machine.
    pub pid: i32,
    /// A TCP port that is open on all of the host's addresses.
    pub port: u16,
    /// Addresses of the host, its loopback among them.
    pub addresses: Vec<Ipv4Addr>,
    /// The gateway, and the only ports that it may serve.
    pub gateway: Option<Ipv4Addr>,
    pub offered: Vec<u16>,
    /// The name of an abstract Unix socket on the host.
    pub socket: String,
    /// The block device of a disk.
    pub disk: (u32, u32),
}

impl Host {
    pub fn to_args(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(Ipv4Addr::to_string).collect();
        let offered: Vec<String> = self.offered.iter().map(u16::to_string).collect();
        let gateway = self.gateway.map(|it| it.to_string()).unwrap_or_default();
        format!(
            "{}|{}|{}|{gateway}|{}|{}|{}|{}",
            self.pid,
            self.port,
            addresses.join(","),
            offered.join(","),
            self.socket,
            self.disk.0,
            self.disk.1
        )
    }

    fn from_args(text: &str) -> Host {
        let fields: Vec<&str> = text.split('|').collect();
        let list = |text: &str| text.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect();
        let (addresses, offered): (Vec<String>, Vec<String>) = (list(fields[2]), list(fields[4]));
        Host {
            pid: fields[0].parse().unwrap(),
            port: fields[1].parse().unwrap(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            gateway: fields[3].parse().ok(),
            offered: offered.iter().map(|it| it.parse().unwrap()).collect(),
            socket: fields[5].to_owned(),
            disk: (fields[6].parse().unwrap(), fields[7].parse().unwrap()),
        }
    }
}

/// Runs all attempts in a machine. The last line is the number of attempts.
pub fn attack(args: &str) {
    let host = Host::from_args(args);
    let mut attempts = Attempts(0);
    walk(&mut attempts);
    settings(&mut attempts);
    inodes_of_the_host(&mut attempts);
    calls::mounts(&mut attempts);
    devices(&mut attempts, &host);
    calls::privileged_calls(&mut attempts);
    calls::namespaces(&mut attempts);
    processes(&mut attempts, &host);
    sockets(&mut attempts, &host);
    calls::other_architecture(&mut attempts);
    println!("ATTEMPTS {}", attempts.0);
}

pub(super) struct Attempts(pub(super) u32);

const REFUSED: &[i32] = &[libc::EPERM, libc::EACCES, libc::EROFS, libc::ENOSYS];

impl Attempts {
    pub(super) fn breach(&mut self, what: &str) {
        // The test harness may not have ended its last line.
        println!("\nBREACH {what}");
    }

    /// A system call that must fail with one of these errors.
    pub(super) fn refused_with(&mut self, what: &str, errors: &[i32], result: c_long) {
        self.0 += 1;
        let error = io::Error::last_os_error();
        if result >= 0 {
            self.breach(&format!("{what}: succeeded"));
        } else if !error.raw_os_error().is_some_and(|it| errors.contains(&it)) {
            self.breach(&format!("{what}: passed the permission check ({error})"));
        }
    }

    pub(super) fn refused(&mut self, what: &str, result: c_long) {
        self.refused_with(what, REFUSED, result);
    }

    pub(super) fn failed<T>(&mut self, what: &str, result: io::Result<T>) {
        self.0 += 1;
        if result.is_ok() {
            self.breach(&format!("{what}: succeeded"));
        }
    }
}

/// Opens every file in /proc and /sys for writing, without writing, and sets its mode to the current one: the files in
/// /proc are shared with the host.
fn walk(attempts: &mut Attempts) {
    let mut folders = vec![PathBuf::from("/proc"), PathBuf::from("/sys")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            let name = entry.file_name();
            // The machine's own processes, which it may change.
            if folder == Path::new("/proc") && name.to_string_lossy().parse::<u32>().is_ok() {
                continue;
            }
            if kind.is_symlink() {
                continue;
            }
            attempts.0 += 1;
            if let Ok(meta) = fs::symlink_metadata(&path)
                && fs::set_permissions(&path, fs::Permissions::from_mode(meta.mode() & 0o7777)).is_ok()
            {
                attempts.breach(&format!("the mode of {} can be changed", path.display()));
            }
            if kind.is_dir() {
                folders.push(path);
            } else {
                let opened = fs::OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
                    .open(&path);
                if let Ok(file) = opened
                    && !is_null(&file)
                {
                    attempts.breach(&format!("{} opens for writing", path.display()));
                }
            }
        }
    }
}

/// The replacements of hidden files: writing to them has no effect.
fn is_null(file: &fs::File) -> bool {
    file.metadata().is_ok_and(|meta| meta.file_type().is_char_device() && meta.rdev() == libc::makedev(1, 3))
}

/// Settings that K3s in a machine used to change, and others that would compromise the host.
fn settings(attempts: &mut Attempts) {
    for name in [
        "vm/overcommit_memory",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/core_pattern",
        "kernel/modprobe",
        "fs/file-max",
        "net/ipv4/ip_forward",
    ] {
        let path = Path::new("/proc/sys").join(name);
        if let Ok(value) = fs::read(&path) {
            let written =
                fs::OpenOptions::new().write(true).open(&path).and_then(|mut it| it.write_all(&value));
            attempts.failed(&format!("write {}", path.display()), written);
        }
    }
}

/// Files of the host that a machine can access: device nodes, its executable, descriptors that it was started with.
fn inodes_of_the_host(attempts: &mut Attempts) {
    let mut paths: Vec<PathBuf> =
        ["null", "zero", "full", "random", "urandom", "tty"].map(|name| Path::new("/dev").join(name)).into();
    paths.extend(["/proc/1/exe", "/proc/self/exe", "/usr/lib/drover/drover"].map(PathBuf::from));
    for process in ["/proc/1/fd", "/proc/self/fd"] {
        let entries = fs::read_dir(process).into_iter().flatten().flatten();
        paths.extend(entries.map(|entry| entry.path()));
    }
    for path in paths {
        let Ok(meta) = fs::metadata(&path) else { continue };
        let kind = meta.file_type();
        // This program has one open itself, to list its descriptors.
        if kind.is_dir() && path.starts_with("/proc/1") {
            attempts.breach(&format!("process 1 has the directory open {:?}", fs::read_link(&path)));
        }
        // Pipes and sockets are not files of the host. Terminals belong to the machine and are checked by `devices`.
        if kind.is_fifo() || kind.is_socket() || !(kind.is_file() || kind.is_char_device()) {
            continue;
        }
        // Descriptors of this program on the machine's own disk or in kernel file systems.
        let target = fs::read_link(&path).unwrap_or_default();
        if target.starts_with("/proc") || target.starts_with("/dev/pts") || target.starts_with("/memfd:") {
            continue;
        }
        let same = fs::Permissions::from_mode(meta.mode() & 0o7777);
        attempts.failed(
            &format!("change the mode of {} ({})", path.display(), target.display()),
            fs::set_permissions(&path, same),
        );
    }
}

fn devices(attempts: &mut Attempts, host: &Host) {
    let allowed = ["null", "zero", "full", "random", "urandom", "tty"];
    let mut folders = vec![PathBuf::from("/dev")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            attempts.0 += 1;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_block_device()
                || (kind.is_char_device()
                    && !path.starts_with("/dev/pts")
                    && !allowed.iter().any(|name| path == Path::new("/dev").join(name)))
            {
                attempts.breach(&format!("{} is a device of the host", path.display()));
            }
        }
    }
    let disk = libc::makedev(host.disk.0, host.disk.1);
    for (what, mode, device) in [
        ("the host's disk", libc::S_IFBLK, disk),
        ("/dev/mem", libc::S_IFCHR, libc::makedev(1, 1)),
        ("/dev/kmsg", libc::S_IFCHR, libc::makedev(1, 11)),
    ] {
        for folder in ["/root", "/dev/shm", "/run", "/tmp", "/var", "/etc"] {
            let path = format!("{folder}/node");
            let name = CString::new(path.as_str()).unwrap();
            // SAFETY: the string ends with a null byte.
            let made = unsafe { libc::mknod(name.as_ptr(), mode | 0o600, device) };
            attempts.refused(&format!("create a node of {what} in {folder}"), c_long::from(made));
            attempts.failed(&format!("open {what} in {folder}"), fs::File::open(&path));
            let _ = fs::remove_file(&path);
        }
    }
}

/// No process outside of the machine has a pid inside.
fn processes(attempts: &mut Attempts, host: &Host) {
    let gone = [libc::ESRCH, libc::EPERM, libc::ENOENT];
    // SAFETY: plain calls that address a process by its pid.
    unsafe {
        attempts.refused_with("signal a process of the host", &gone, c_long::from(libc::kill(host.pid, 0)));
        let seized = libc::syscall(libc::SYS_ptrace, 0x4206, host.pid, 0, 0);
        attempts.refused_with("ptrace a process of the host", &gone, seized);
        attempts.refused_with(
            "pidfd_open of the host",
            &gone,
            libc::syscall(libc::SYS_pidfd_open, host.pid, 0),
        );
        let mut byte = [0u8; 1];
        let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let read = libc::process_vm_readv(host.pid, &local, 1, &local, 1, 0);
        attempts.refused_with("read memory of the host", &gone, read as c_long);
    }
    attempts.failed("see a process of the host", fs::metadata(format!("/proc/{}/status", host.pid)));
    for link in ["/proc/1/root", "/proc/1/cwd"] {
        attempts.0 += 1;
        let (there, here) = (fs::metadata(link), fs::metadata("/"));
        if let (Ok(there), Ok(here)) = (there, here)
            && there.dev() != here.dev()
        {
            attempts.breach(&format!("{link} is another file system than /"));
        }
    }
}

fn sockets(attempts: &mut Attempts, host: &Host) {
    for (name, domain, kind) in [
        ("AF_VSOCK", libc::AF_VSOCK, libc::SOCK_STREAM),
        ("AF_PACKET", libc::AF_PACKET, libc::SOCK_RAW),
        ("AF_ALG", libc::AF_ALG, libc::SOCK_SEQPACKET),
        ("AF_KEY", libc::AF_KEY, libc::SOCK_RAW),
        ("raw IP", libc::AF_INET, libc::SOCK_RAW),
    ] {
        let refused = [REFUSED, &[libc::EAFNOSUPPORT]].concat();
        // SAFETY: a plain call.
        let made = unsafe {
            libc::socket(domain, kind, if kind == libc::SOCK_RAW { libc::IPPROTO_ICMP } else { 0 })
        };
        attempts.refused_with(name, &refused, c_long::from(made));
    }
    use std::os::linux::net::SocketAddrExt;
    let name = std::os::unix::net::SocketAddr::from_abstract_name(host.socket.as_bytes()).unwrap();
    attempts.failed("the host's abstract socket", UnixStream::connect_addr(&name));
    let call = |address: Ipv4Addr, port: u16| {
        TcpStream::connect_timeout(&SocketAddr::new(address.into(), port), Duration::from_secs(2))
    };
    for address in &host.addresses {
        attempts.failed(&format!("the host's port at {address}"), call(*address, host.port));
    }
    if let Some(gateway) = host.gateway {
        attempts.0 += 1;
        let open: Vec<u16> = (1..=u16::MAX).filter(|port| call(gateway, *port).is_ok()).collect();
        if open != host.offered {
            attempts.breach(&format!("the gateway offers {open:?} instead of {:?}", host.offered));
        }
    }
}
