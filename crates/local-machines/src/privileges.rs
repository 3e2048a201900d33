//! The privileges of a machine's programs: their capabilities, no new privileges, and the system call filter. Process 1
//! drops all other privileges before it starts the first program, so that units, install scripts and `drover machine
//! ssh` have the same limits.
#![allow(unsafe_code)]

use std::{collections::BTreeMap, io};

use nix::libc::{self, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::syscalls::{ALLOWED, REFUSED};

/// The capabilities that are kept, with their numbers in linux/capability.h. These are the defaults of container
/// runtimes without CAP_MKNOD and CAP_NET_RAW (no devices, no forged packets), and with CAP_SYS_PTRACE: process 1 finds
/// the processes of a unit by their environment, whatever user they run as. Processes of other machines are not visible
/// in this pid namespace.
const KEPT: &[(&str, u32)] = &[
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("FOWNER", 3),
    ("FSETID", 4),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
    ("SETPCAP", 8),
    ("NET_BIND_SERVICE", 10),
    ("SYS_CHROOT", 18),
    ("SYS_PTRACE", 19),
    ("AUDIT_WRITE", 29),
    ("SETFCAP", 31),
];

/// Allowed address families of sockets: Unix, IPv4, IPv6 and netlink. Others bypass the machine's network (AF_VSOCK of
/// a hypervisor is not in any network namespace) or give access to rarely used kernel code.
const SOCKET_DOMAINS: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The personalities that container runtimes allow: Linux and Linux32, each with or without UNAME26, and the query.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Namespaces that clone(2) can create.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Simulated terminal input and calls of the host's console. These are the numbers of x86 and ARM, because the types in
/// the `libc` crate differ between C libraries.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

/// Drops all privileges that a machine does not need, for this process and all its descendants. The process must have
/// one thread. Nothing can be mounted afterwards.
pub(crate) fn drop_privileges() -> io::Result<()> {
    drop_capabilities()?;
    // SAFETY: a plain call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    // If both filters reject a call, the one that was installed last determines the error.
    for program in [allowed_calls()?, refused_calls()?] {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn drop_capabilities() -> io::Result<()> {
    let kept = |cap: u32| KEPT.iter().any(|(_, number)| *number == cap);
    for cap in 0..64 {
        // SAFETY: a plain call.
        let dropped = kept(cap) || unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) } == 0;
        if !dropped {
            let error = io::Error::last_os_error();
            // The kernel does not support this capability, nor any with a higher number.
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return Err(error);
        }
    }
    // SAFETY: a plain call.
    check(
        unsafe {
            libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0, 0, 0)
        }
        .into(),
    )?;
    // struct __user_cap_header_struct with _LINUX_CAPABILITY_VERSION_3 and this thread; then, for the lower and the
    // upper 32 capabilities, struct __user_cap_data_struct: effective, permitted, inheritable.
    let mut header: [u32; 2] = [0x2008_0522, 0];
    let mut data = [0u32; 6];
    // SAFETY: the kernel fills structures of exactly this layout.
    check(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) })?;
    // Drover itself may have been started with fewer capabilities, and none can be added.
    let mask = KEPT.iter().map(|(_, number)| 1u32 << number).sum::<u32>() & data[1];
    data = [mask, mask, 0, 0, 0, 0];
    // SAFETY: the kernel reads two structures of exactly this layout.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })
}

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Allows known calls. Unknown calls fail with ENOSYS, so that a C library falls back to an older call. A call of
/// another architecture terminates the program.
fn allowed_calls() -> io::Result<BpfProgram> {
    let rules = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    compile(rules, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)
}

/// Rejects forbidden calls with EPERM, as the kernel does without the capability.
fn refused_calls() -> io::Result<BpfProgram> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let bits = |flag: &libc::c_int| {
        let flag = *flag as u32 as u64;
        rule(vec![condition(0, SeccompCmpOp::MaskedEq(flag), flag)?])
    };
    rules.insert(libc::SYS_clone, NAMESPACES.iter().map(bits).collect::<io::Result<_>>()?);
    let unlike = |values: &[u64]| {
        rule(values.iter().map(|value| condition(0, SeccompCmpOp::Ne, *value)).collect::<io::Result<_>>()?)
    };
    rules.insert(libc::SYS_socket, vec![unlike(&SOCKET_DOMAINS.map(|domain| domain as u64))?]);
    rules.insert(libc::SYS_personality, vec![unlike(&PERSONALITIES)?]);
    let terminal = [TIOCSTI, TIOCLINUX].map(|request| rule(vec![condition(1, SeccompCmpOp::Eq, request)?]));
    rules.insert(libc::SYS_ioctl, terminal.into_iter().collect::<io::Result<_>>()?);
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).map_err(io::Error::other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(io::Error::other)
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    on_match: SeccompAction,
) -> io::Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    SeccompFilter::new(rules.into_iter().collect(), otherwise, on_match, arch)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn filters_fit_into_the_kernel_and_do_not_conflict() {
        // BPF_MAXINSNS.
        assert!(allowed_calls().unwrap().len() <= 4096 && refused_calls().unwrap().len() <= 4096);
        let allowed: BTreeSet<_> = ALLOWED.iter().collect();
        assert_eq!(allowed.len(), ALLOWED.len(), "a call is named twice");
        assert!(REFUSED.iter().all(|call| !allowed.contains(call)));
        for conditional in [libc::SYS_clone, libc::SYS_socket, libc::SYS_personality, libc::SYS_ioctl] {
            assert!(allowed.contains(&conditional));
        }
    }

    #[test]
    fn no_capability_over_the_host_is_kept() {
        // MKNOD 27, NET_ADMIN 12, NET_RAW 13, SYS_MODULE 16, SYS_RAWIO 17, SYS_ADMIN 21, SYS_BOOT 22, SYS_TIME 25.
        for cap in [12, 13, 16, 17, 21, 22, 25, 27] {
            assert!(KEPT.iter().all(|(_, number)| *number != cap));
        }
    }
}
