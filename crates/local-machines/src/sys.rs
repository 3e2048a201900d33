//! System calls without a safe wrapper. All `unsafe` code of this crate is here, in `privileges` and in `wire::owned`.
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

/// Starts `program` as process 1 of new mount, pid, uts, ipc and network namespaces.
///
/// The program is passed as a descriptor of a read-only mount (see [`detached_read_only`]), because a process can
/// access its own executable through /proc. The child is killed when the *thread* that calls this ends, so that thread
/// must live as long as the machine. `fds` become the child's descriptors 0, 1, 2, …; all others are closed.
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
    // The copies are above the targets, so that no copy is overwritten before it is placed.
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
            // The process that started the holder may have left descriptors open that give access to files of the host.
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
    // SAFETY: fcntl returns a new descriptor that nothing else uses.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, minimum) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Takes ownership of a descriptor that this process was started with.
pub(crate) fn inherited(fd: RawFd) -> OwnedFd {
    // SAFETY: called once per number at the start of `init_main`; the parent opened the descriptor for this process. If
    // it is not open, its use returns an error.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Marks a directory of an overlay's upper layer as opaque, so that the lower layer is hidden.
pub(crate) fn set_opaque(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both strings end with a null byte, the value is one byte long.
    let result = unsafe {
        libc::lsetxattr(path.as_ptr(), c"user.overlay.opaque".as_ptr(), c"y".as_ptr().cast(), 1, 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns a detached, read-only copy of the mounts at `source`, for [`attach`] after the root was changed.
pub(crate) fn detached_read_only(source: &Path) -> io::Result<OwnedFd> {
    detached(source, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)
}

/// The same for a device. The device can be used; only its mode and owner are read-only.
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

/// Disables setuid files and device nodes below this mount.
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

/// Attaches a mount of [`detached_read_only`].
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

/// Opens a new pseudo-terminal. Returns the master and the path of the slave.
pub(crate) fn open_terminal(rows: u16, cols: u16) -> io::Result<(OwnedFd, String)> {
    // SAFETY: plain calls on a descriptor that this function owns; the length of the buffer is correct.
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

/// Sets the window size of a terminal.
pub(crate) fn set_terminal_size(terminal: &impl AsRawFd, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the window size of a terminal; `None` if it is not a terminal.
pub(crate) fn terminal_size(terminal: &impl AsRawFd) -> Option<(u16, u16)> {
    // SAFETY: TIOCGWINSZ fills one winsize.
    let (result, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &mut size), size)
    };
    (result == 0 && size.ws_row > 0).then_some((size.ws_row, size.ws_col))
}

/// Runs a function in a child process that accesses files as the user nobody but can still mount. `prepare` runs
/// before, with all permissions, and returns that function. This process must have one thread.
pub(crate) fn in_child_as_nobody<F>(prepare: impl FnOnce() -> nix::Result<F>) -> io::Result<()>
where
    F: FnOnce() -> nix::Result<()>,
{
    const NOBODY: libc::uid_t = 65534;
    // A change of the user clears the parent death signal, so it must not happen in this process.
    match fork()? {
        nix::unistd::ForkResult::Child => {
            let outcome = prepare().and_then(|then| {
                nix::unistd::setgroups(&[])?;
                // SAFETY: plain calls. With the user, the kernel removes the capabilities on files.
                unsafe {
                    libc::setfsgid(NOBODY);
                    libc::setfsuid(NOBODY);
                    // These return the previous value; called with -1 they change nothing.
                    if libc::setfsuid(u32::MAX) != NOBODY as libc::c_int
                        || libc::setfsgid(u32::MAX) != NOBODY as libc::c_int
                    {
                        return Err(nix::errno::Errno::EPERM);
                    }
                }
                then()
            });
            // SAFETY: exits this child without running exit handlers of the parent.
            unsafe { libc::_exit(outcome.err().map_or(0, |errno| errno as libc::c_int)) }
        }
        nix::unistd::ForkResult::Parent { child } => match nix::sys::wait::waitpid(child, None)? {
            nix::sys::wait::WaitStatus::Exited(_, 0) => Ok(()),
            nix::sys::wait::WaitStatus::Exited(_, errno) => Err(io::Error::from_raw_os_error(errno)),
            status => Err(io::Error::other(format!("{status:?}"))),
        },
    }
}

/// Sets the name of this process in process lists.
pub(crate) fn set_process_name(name: &CStr) {
    // SAFETY: the string ends with a null byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Forks this process, which must have one thread.
pub(crate) fn fork() -> io::Result<nix::unistd::ForkResult> {
    // SAFETY: callers are at the start of `holder_main`, before any thread exists.
    Ok(unsafe { nix::unistd::fork() }?)
}

/// Starts the child in a new session, with the terminal on its stdin as the controlling terminal if there is one, and
/// unblocks the signals that process 1 has blocked.
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

/// Sets the limit on open files of the child to `limit`, or as near to it as the kernel allows.
pub(crate) fn limit_open_files(command: &mut std::process::Command, limit: u64) {
    use std::os::unix::process::CommandExt;
    // SAFETY: getrlimit and setrlimit are plain system calls.
    unsafe {
        command.pre_exec(move || {
            let mut now: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) == 0 {
                let wanted = libc::rlimit { rlim_cur: limit, rlim_max: limit.max(now.rlim_max) };
                if libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) != 0 {
                    // Only root can raise the hard limit.
                    now.rlim_cur = limit.min(now.rlim_max);
                    libc::setrlimit(libc::RLIMIT_NOFILE, &now);
                }
            }
            Ok(())
        });
    }
}

/// The minimum number of open files for a management plane, or for a holder with its machines.
const MIN_OPEN_FILES: u64 = 256;

/// Raises the soft limit on open files of this process and its children to the hard limit. Login shells and service
/// managers set a low soft limit for the compatibility of old programs.
pub fn raise_open_files() {
    let hard = max_open_files();
    let all = libc::rlimit { rlim_cur: hard, rlim_max: hard };
    // SAFETY: a plain system call that reads the struct.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &all) };
}

/// Raises the hard limit on open files if this process may do so. Programs of machines request more than most hosts
/// allow, and a process in a user namespace cannot raise it.
pub(super) fn allow_open_files(limit: u64) {
    let hard = max_open_files();
    if hard < limit {
        let raised = libc::rlimit { rlim_cur: hard, rlim_max: limit };
        // SAFETY: a plain system call that reads the struct.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) };
    }
}

/// Fails if even the hard limit is too low. Without this check, an unrelated operation would fail later.
pub fn enough_open_files() -> crate::Result<()> {
    let hard = max_open_files();
    if hard >= MIN_OPEN_FILES {
        return Ok(());
    }
    Err(crate::Error::Unsupported(format!(
        "the limit on open files is {hard}, but at least {MIN_OPEN_FILES} are required; raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of a systemd unit)"
    )))
}

fn max_open_files() -> u64 {
    let mut now = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // SAFETY: a plain system call that fills the struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) };
    now.rlim_max
}

/// Restores the default action of signals that this process was started with ignored (for example by `nohup`), for the
/// programs it starts.
pub(super) fn restore_default_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: this installs no handler, only the default action, and no other thread exists yet.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
