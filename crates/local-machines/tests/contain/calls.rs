//! System calls that must be rejected in a machine, for `attack`.
#![allow(unsafe_code)]

use std::{ffi::CString, fs};

use nix::libc::{self, c_long};

use super::attack::Attempts;

pub(super) fn mounts(attempts: &mut Attempts) {
    let mount = |source: &str, target: &str, kind: &str, flags: libc::c_ulong| -> c_long {
        let [source, target, kind] = [source, target, kind].map(|it| CString::new(it).unwrap());
        // SAFETY: the strings end with a null byte and live long enough.
        unsafe {
            c_long::from(libc::mount(
                source.as_ptr(),
                target.as_ptr(),
                kind.as_ptr(),
                flags,
                std::ptr::null(),
            ))
        }
    };
    let _ = fs::create_dir_all("/root/mnt");
    for kind in
        ["tmpfs", "proc", "sysfs", "cgroup2", "overlay", "mqueue", "securityfs", "debugfs", "devtmpfs", "bpf"]
    {
        attempts.refused(&format!("mount {kind}"), mount("none", "/root/mnt", kind, 0));
    }
    attempts.refused("bind /proc", mount("/proc", "/root/mnt", "", libc::MS_BIND | libc::MS_REC));
    for target in ["/proc/sys", "/proc/sysrq-trigger", "/sys", "/dev/null", "/usr"] {
        attempts.refused(
            &format!("remount {target}"),
            mount("none", target, "", libc::MS_REMOUNT | libc::MS_BIND),
        );
        let path = CString::new(target).unwrap();
        // SAFETY: the string ends with a null byte.
        let result = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        attempts.refused(&format!("unmount {target}"), c_long::from(result));
    }
    // SAFETY: strings end with a null byte; no structure is passed.
    unsafe {
        attempts.refused("fsopen", libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0));
        let tree =
            libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, c"/proc".as_ptr(), libc::OPEN_TREE_CLONE);
        attempts.refused("open_tree", tree);
        attempts
            .refused("pivot_root", libc::syscall(libc::SYS_pivot_root, c"/".as_ptr(), c"/root/mnt".as_ptr()));
        let attributes = [0u64; 4];
        let changed = libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/proc/sys".as_ptr(),
            0,
            attributes.as_ptr(),
            32,
        );
        attempts.refused("mount_setattr", changed);
    }
}

/// Calls with arguments that are always invalid: only the permission check may reject them.
pub(super) fn privileged_calls(attempts: &mut Attempts) {
    let null = std::ptr::null::<u8>();
    // SAFETY: every pointer is null or a string with its null byte; nothing here can succeed.
    unsafe {
        attempts.refused("init_module", libc::syscall(libc::SYS_init_module, null, 0, c"".as_ptr()));
        attempts.refused("finit_module", libc::syscall(libc::SYS_finit_module, -1, c"".as_ptr(), 0));
        attempts
            .refused("delete_module", libc::syscall(libc::SYS_delete_module, c"no_such_module".as_ptr(), 0));
        attempts.refused("kexec_load", libc::syscall(libc::SYS_kexec_load, 0, 0, null, 0));
        attempts
            .refused("kexec_file_load", libc::syscall(libc::SYS_kexec_file_load, -1, -1, 0, c"".as_ptr(), 0));
        attempts.refused("reboot", libc::syscall(libc::SYS_reboot, 0, 0, 0, null));
        attempts.refused("swapon", libc::syscall(libc::SYS_swapon, c"/no/such/file".as_ptr(), 0));
        attempts.refused("swapoff", libc::syscall(libc::SYS_swapoff, c"/no/such/file".as_ptr()));
        attempts.refused("clock_settime", libc::syscall(libc::SYS_clock_settime, libc::CLOCK_REALTIME, null));
        attempts.refused("settimeofday", libc::syscall(libc::SYS_settimeofday, null, null));
        attempts.refused("adjtimex", libc::syscall(libc::SYS_adjtimex, null));
        attempts.refused("syslog", libc::syscall(libc::SYS_syslog, 10, null, 0));
        attempts.refused("acct", libc::syscall(libc::SYS_acct, c"/no/such/file".as_ptr()));
        attempts.refused("quotactl", libc::syscall(libc::SYS_quotactl, 0, null, 0, null));
        attempts.refused("bpf", libc::syscall(libc::SYS_bpf, 0, null, 0));
        attempts.refused("perf_event_open", libc::syscall(libc::SYS_perf_event_open, null, 0, -1, -1, 0));
        attempts.refused(
            "add_key",
            libc::syscall(libc::SYS_add_key, c"user".as_ptr(), c"x".as_ptr(), null, 0, -3),
        );
        attempts.refused("keyctl", libc::syscall(libc::SYS_keyctl, 0, -3, 0));
        attempts.refused(
            "request_key",
            libc::syscall(libc::SYS_request_key, c"user".as_ptr(), c"x".as_ptr(), null, 0),
        );
        attempts.refused("userfaultfd", libc::syscall(libc::SYS_userfaultfd, 0));
        attempts.refused(
            "open_by_handle_at",
            libc::syscall(libc::SYS_open_by_handle_at, libc::AT_FDCWD, null, 0),
        );
        attempts.refused("lookup_dcookie", libc::syscall(libc::SYS_lookup_dcookie, 0, null, 0));
        attempts.refused("io_uring_setup", libc::syscall(libc::SYS_io_uring_setup, 0, null));
        attempts.refused("personality", libc::syscall(libc::SYS_personality, 0x0040_0000));
        attempts.refused("fanotify_init", libc::syscall(libc::SYS_fanotify_init, 0, 0));
        attempts.refused("move_pages", libc::syscall(libc::SYS_move_pages, 1, 1, null, null, null, 0));
        #[cfg(target_arch = "x86_64")]
        {
            attempts.refused("iopl", libc::syscall(libc::SYS_iopl, 3));
            attempts.refused("ioperm", libc::syscall(libc::SYS_ioperm, 0x80, 1, 1));
        }
    }
}

pub(super) fn namespaces(attempts: &mut Attempts) {
    for (name, flag) in [
        ("user", libc::CLONE_NEWUSER),
        ("mount", libc::CLONE_NEWNS),
        ("network", libc::CLONE_NEWNET),
        ("pid", libc::CLONE_NEWPID),
        ("ipc", libc::CLONE_NEWIPC),
        ("uts", libc::CLONE_NEWUTS),
        ("cgroup", libc::CLONE_NEWCGROUP),
    ] {
        // SAFETY: plain calls; a child of clone exits immediately.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, flag | libc::SIGCHLD, 0, 0, 0, 0);
            if child == 0 {
                libc::_exit(0);
            }
            attempts.refused(&format!("clone with a new {name} namespace"), child);
            attempts.refused(&format!("unshare the {name} namespace"), c_long::from(libc::unshare(flag)));
        }
    }
    if let Ok(own) = fs::File::open("/proc/1/ns/net") {
        use std::os::fd::AsRawFd;
        // SAFETY: a plain call on a descriptor that is open.
        attempts.refused("setns", c_long::from(unsafe { libc::setns(own.as_raw_fd(), 0) }));
    }
    // SAFETY: no structure is passed. C libraries fall back to clone if this call does not exist.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0) };
    attempts.refused_with("clone3", &[libc::ENOSYS], result);
}

/// A system call with the number of a 32-bit program, which the filter does not cover.
pub(super) fn other_architecture(attempts: &mut Attempts) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the child makes one call, 20 (getpid), and exits.
    unsafe {
        attempts.0 += 1;
        let child = libc::fork();
        if child == 0 {
            let mut number: u64 = 20;
            std::arch::asm!("int 0x80", inout("rax") number);
            libc::_exit(if number > 0 { 7 } else { 0 });
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        if !libc::WIFSIGNALED(status) {
            attempts.breach("a program calls the kernel by the numbers of another architecture");
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = attempts;
}
