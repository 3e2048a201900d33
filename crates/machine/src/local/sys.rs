//! System calls that no safe wrapper covers. Everything `unsafe` of this crate that the kernel needs is here, in
//! `privileges` and in `wire::owned`.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::libc;

/// From linux/close_range.h.
const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;

/// Starts `program` as process 1 of new mount, pid, uts, ipc and network namespaces. It is named by a descriptor of a
/// read-only mount (see [`detached_read_only`]), because a process can reach its own executable through /proc.
///
/// The child dies with the *thread* that calls this, so call it from one that lives as long as the machine may.
/// `fds` become the child's descriptors 0, 1, 2, …; everything else is close-on-exec in this process.
pub(crate) fn spawn_in_new_namespaces(
    program: BorrowedFd<'_>,
    args: &[&str],
    env: &[&str],
    fds: &[BorrowedFd<'_>],
) -> io::Result<i32> {
    // Everything is allocated before the fork: another thread of this process may hold the allocator's lock.
    let argv: Vec<CString> = args.iter().map(|arg| CString::new(*arg)).collect::<Result<_, _>>()?;
    let envp: Vec<CString> = env.iter().map(|var| CString::new(*var)).collect::<Result<_, _>>()?;
    let argv = pointers(&argv);
    let envp = pointers(&envp);
    // Copies above the targets, so that placing one never overwrites another that is still to be placed.
    let program = duplicate_above(program, 64)?;
    let copies: Vec<OwnedFd> = fds.iter().map(|fd| duplicate_above(*fd, 64)).collect::<io::Result<_>>()?;
    let flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET
        | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is fork(2) with namespaces; the child runs on a copy of
    // this stack and makes only async-signal-safe calls until execve.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_long, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: in the child; see above. `argv` and `envp` end with a null pointer and outlive the call.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::setsid();
            for (target, source) in copies.iter().enumerate() {
                if libc::dup2(source.as_raw_fd(), target as RawFd) < 0 {
                    libc::_exit(126);
                }
            }
            // Whoever started the holder may have left descriptors open that lead anywhere on the host.
            let first = copies.len() as libc::c_uint;
            if libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) < 0 {
                libc::_exit(125);
            }
            libc::syscall(
                libc::SYS_execveat,
                program.as_raw_fd(),
                c"".as_ptr(),
                argv.as_ptr(),
                envp.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
            libc::_exit(127);
        }
    }
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

fn duplicate_above(fd: BorrowedFd<'_>, minimum: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl makes a new descriptor that only we know.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, minimum) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Takes over a descriptor that this process was started with.
pub(crate) fn inherited(fd: RawFd) -> OwnedFd {
    // SAFETY: called once per number at the start of `init_main`; the parent placed the descriptor for us. A number
    // that is not open yields errors on use, nothing worse.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Marks a directory of an overlay's upper layer so that nothing of the lower one shows through.
pub(crate) fn set_opaque(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both strings end with a null byte, the value is one byte long.
    let result = unsafe {
        libc::lsetxattr(path.as_ptr(), c"user.overlay.opaque".as_ptr(), c"y".as_ptr().cast(), 1, 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A detached, read-only copy of the mounts at `source`, to be attached with [`attach`] after the root changed.
pub(crate) fn detached_read_only(source: &Path) -> io::Result<OwnedFd> {
    detached(source, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)
}

/// The same of a device, which works as one; read-only are its mode and owner.
pub(crate) fn detached_device(source: &Path) -> io::Result<OwnedFd> {
    detached(source, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC)
}

fn detached(source: &Path, attributes: u64) -> io::Result<OwnedFd> {
    let source = CString::new(source.as_os_str().as_bytes())?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as u32;
    // SAFETY: the path ends with a null byte; the kernel returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let tree = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    set_mount_attributes(tree.as_raw_fd(), c"", flags, attributes)?;
    Ok(tree)
}

/// Setuid files and device nodes below this mount mean nothing.
pub(crate) fn restrict_mount(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    set_mount_attributes(libc::AT_FDCWD, &path, 0, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)
}

fn set_mount_attributes(
    directory: RawFd,
    path: &CStr,
    flags: libc::c_int,
    attributes: u64,
) -> io::Result<()> {
    // SAFETY: an all-zero mount_attr changes nothing.
    let mut change: libc::mount_attr = unsafe { std::mem::zeroed() };
    change.attr_set = attributes;
    // SAFETY: the structure and its size agree, the path ends with a null byte.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            &change,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches what [`detached_read_only`] made.
pub(crate) fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
    let target = CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: both paths end with a null byte.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a new pseudo-terminal: master, and the path of its slave.
pub(crate) fn open_terminal(rows: u16, cols: u16) -> io::Result<(OwnedFd, String)> {
    // SAFETY: plain calls on a descriptor that we own; the buffer is as long as we say.
    unsafe {
        let fd = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let master = OwnedFd::from_raw_fd(fd);
        let mut name = [0 as c_char; 64];
        if libc::grantpt(fd) < 0
            || libc::unlockpt(fd) < 0
            || libc::ptsname_r(fd, name.as_mut_ptr(), name.len()) != 0
        {
            return Err(io::Error::last_os_error());
        }
        let slave = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
        set_terminal_size(&master, rows, cols)?;
        Ok((master, slave))
    }
}

/// Tells a terminal how large its window is.
pub(crate) fn set_terminal_size(terminal: &impl AsRawFd, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How large a terminal's window is; `None` if it is no terminal.
pub(crate) fn terminal_size(terminal: &impl AsRawFd) -> Option<(u16, u16)> {
    // SAFETY: TIOCGWINSZ fills one winsize.
    let (result, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &mut size), size)
    };
    (result == 0 && size.ws_row > 0).then_some((size.ws_row, size.ws_col))
}

/// Runs a function in a child that has the file permissions of nobody, but may still mount. `prepare` runs before with
/// all permissions and returns that function. Only for a process with one thread.
pub(crate) fn in_child_as_nobody<F>(prepare: impl FnOnce() -> nix::Result<F>) -> io::Result<()>
where
    F: FnOnce() -> nix::Result<()>,
{
    const NOBODY: libc::uid_t = 65534;
    // A change of user clears the signal for the parent's death: not in this process.
    match fork()? {
        nix::unistd::ForkResult::Child => {
            let outcome = prepare().and_then(|then| {
                nix::unistd::setgroups(&[])?;
                // SAFETY: plain calls. The kernel takes the capabilities on files away with the user.
                unsafe {
                    libc::setfsgid(NOBODY);
                    libc::setfsuid(NOBODY);
                    // They return the value that was there before; asked with -1 they change nothing.
                    if libc::setfsuid(u32::MAX) != NOBODY as libc::c_int
                        || libc::setfsgid(u32::MAX) != NOBODY as libc::c_int
                    {
                        return Err(nix::errno::Errno::EPERM);
                    }
                }
                then()
            });
            // SAFETY: ends this copy of the process without running what belongs to the original.
            unsafe { libc::_exit(outcome.err().map_or(0, |errno| errno as libc::c_int)) }
        }
        nix::unistd::ForkResult::Parent { child } => match nix::sys::wait::waitpid(child, None)? {
            nix::sys::wait::WaitStatus::Exited(_, 0) => Ok(()),
            nix::sys::wait::WaitStatus::Exited(_, errno) => Err(io::Error::from_raw_os_error(errno)),
            status => Err(io::Error::other(format!("{status:?}"))),
        },
    }
}

/// The name of this process in lists.
pub(crate) fn set_process_name(name: &CStr) {
    // SAFETY: the string ends with a null byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Forks this process. Only for a process with one thread.
pub(crate) fn fork() -> io::Result<nix::unistd::ForkResult> {
    // SAFETY: callers are at the start of `holder_main`, before any thread exists.
    Ok(unsafe { nix::unistd::fork() }?)
}

/// Makes the child its own session with the terminal on its stdin, if there is one, as the controlling terminal, and
/// lets it hear the signals that process 1 keeps for itself.
pub(crate) fn new_session(command: &mut std::process::Command, controlling_terminal: bool) {
    use std::os::unix::process::CommandExt;
    // SAFETY: all of these are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::setsid();
            if controlling_terminal {
                libc::ioctl(0, libc::TIOCSCTTY, 0);
            }
            Ok(())
        });
    }
}

/// Gives the child as many open files as the kernel lets it have, up to `limit`.
pub(crate) fn limit_open_files(command: &mut std::process::Command, limit: u64) {
    use std::os::unix::process::CommandExt;
    // SAFETY: getrlimit and setrlimit are plain system calls.
    unsafe {
        command.pre_exec(move || {
            let mut now: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) == 0 {
                let wanted = libc::rlimit { rlim_cur: limit, rlim_max: limit.max(now.rlim_max) };
                if libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) != 0 {
                    // Only root may raise the hard limit.
                    now.rlim_cur = limit.min(now.rlim_max);
                    libc::setrlimit(libc::RLIMIT_NOFILE, &now);
                }
            }
            Ok(())
        });
    }
}

/// Fewer open files do not carry a management plane, nor a holder with its machines.
const FEWEST_OPEN_FILES: u64 = 256;

/// Lets this process, and what it starts, have as many open files as it may. Login shells and service managers give few
/// for the sake of old programs, and leave it to the others to take more.
pub fn raise_open_files() {
    let hard = most_open_files();
    let all = libc::rlimit { rlim_cur: hard, rlim_max: hard };
    // SAFETY: a plain system call that reads the struct.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &all) };
}

/// Raises the hard limit on open files, if this process may: programs of machines ask for more than most hosts give, and
/// nobody in a user namespace can raise it.
pub(super) fn allow_open_files(limit: u64) {
    let hard = most_open_files();
    if hard < limit {
        let raised = libc::rlimit { rlim_cur: hard, rlim_max: limit };
        // SAFETY: a plain system call that reads the struct.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) };
    }
}

/// Says no where even the hard limit is too low: without this, whatever happens to run out first would be blamed.
pub fn enough_open_files() -> super::Result<()> {
    let hard = most_open_files();
    if hard >= FEWEST_OPEN_FILES {
        return Ok(());
    }
    Err(super::Error::Unsupported(format!(
        "only {hard} open files are allowed here, and at least {FEWEST_OPEN_FILES} are needed; raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of a systemd unit)"
    )))
}

fn most_open_files() -> u64 {
    let mut now = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // SAFETY: a plain system call that fills the struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) };
    now.rlim_max
}

/// Signals that this process was started with ignored (`nohup` does that) act again in what it starts.
pub(super) fn restore_default_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: no handler is installed, only the default put back, and no other thread exists yet.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
