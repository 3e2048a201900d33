//! Local machines change nothing on their host: neither as root, nor as a non-root user, nor as root without a user
//! namespace.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod attack;
mod calls;
mod group;
mod hosts;
mod secrets;
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::{Seek, Write},
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::{fd::AsFd, linux::net::SocketAddrExt, unix::net::UnixListener},
    path::Path,
};

use attack::Host;
use drover_local_machines::{CreateOptions, ReadOnlyMount, Terminal};
use group::{a_machine_has_a_control_group_of_its_own, control_groups_are_removed_with_their_machines};
use secrets::{host_files_that_only_root_may_read, setuid_files_have_no_effect};
use support::Rig;

as_root_and_as_user! {
    a_machine_cannot_change_its_host
    every_program_has_the_same_limits
    files_of_the_caller_are_not_passed_into_a_machine
    a_machine_has_a_control_group_of_its_own
    control_groups_are_removed_with_their_machines
    host_files_that_only_root_may_read
    setuid_files_have_no_effect
}

/// The path of this program in the machine.
const PROGRAM: &str = "/opt/attack";

fn create(rig: &Rig, name: &str) {
    let program = std::env::current_exe().unwrap();
    let options = CreateOptions {
        mounts: vec![ReadOnlyMount { source: program, target: PROGRAM.into() }],
        ..CreateOptions::default()
    };
    rig.local.create(name, &options).unwrap();
}

fn a_machine_cannot_change_its_host(rig: Rig) {
    create(&rig, "m");
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let offered = rig.local.listen(0).unwrap();
    let socket = format!("drover-contain-{}", uuid());
    let name = std::os::unix::net::SocketAddr::from_abstract_name(socket.as_bytes()).unwrap();
    let _abstract = UnixListener::bind_addr(&name).unwrap();
    let host = Host {
        pid: std::process::id() as i32,
        port: everywhere.local_addr().unwrap().port(),
        addresses: addresses(rig.local.hello().unwrap().gateway),
        gateway: Some(rig.local.hello().unwrap().gateway),
        offered: vec![offered.local_addr().unwrap().port()],
        socket,
        disk: first_disk(),
    };
    let args = host.to_args();
    let script =
        format!("DROVER_TEST_ATTACK='{args}' {PROGRAM} --exact program_in_a_machine --ignored --nocapture");
    let report = rig.sh("m", &script);
    let breaches: Vec<&str> = report.lines().filter(|line| line.contains("BREACH")).collect();
    let attempts = report.lines().find_map(|line| line.strip_prefix("ATTEMPTS ")).expect(&report);
    assert!(attempts.parse::<u32>().unwrap() > 1000, "{report}");
    assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), breaches.join("\n"));
    rig.finish();
}

#[test]
#[ignore = "runs inside of a machine"]
fn program_in_a_machine() {
    attack::attack(&std::env::var("DROVER_TEST_ATTACK").unwrap());
}

/// `drover machine ssh`, units and the install script have the same limits.
fn every_program_has_the_same_limits(rig: Rig) {
    let limits = "grep -e ^Cap -e ^NoNewPrivs -e ^Seccomp: /proc/self/status";
    rig.create_with("m", &format!("{limits} >/root/install"));
    let unit = format!("[Service]\\nType=oneshot\\nExecStart=/bin/sh -c \"{limits} >/root/unit\"\\n");
    rig.sh("m", &format!("printf '{unit}' >/etc/systemd/system/l.service && systemctl start l"));
    rig.until("m", "test -s /root/install");
    let of_exec = rig.sh("m", limits);
    let field = |name: &str| {
        of_exec.lines().find_map(|line| line.strip_prefix(name)).expect(&of_exec).trim().to_owned()
    };
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    // CHOWN … SETFCAP, see `privileges::KEPT`.
    assert_eq!(u64::from_str_radix(&field("CapBnd:"), 16).unwrap(), 0xa00c_05fb);
    assert_eq!((field("CapEff:"), field("CapPrm:")), (field("CapBnd:"), field("CapBnd:")));
    for none in ["CapAmb:", "CapInh:"] {
        assert_eq!(field(none), "0000000000000000");
    }
    assert_eq!(rig.sh("m", "cat /root/install"), of_exec);
    assert_eq!(rig.sh("m", "cat /root/unit"), of_exec);
    // No file system, neither of the host nor of the machine, allows setuid bits or device nodes.
    let mounts = rig.sh("m", "cat /proc/mounts");
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let has = |option: &str| words[3].split(',').any(|it| it == option);
        let device = words[2] == "devtmpfs" || words[2] == "devpts";
        assert!(has("nosuid") && (device || has("nodev")), "{line}");
    }
    // Programs that need no privileges still work.
    rig.sh(
        "m",
        "mkfifo /root/fifo && exec 3<>/root/fifo && chroot / true && echo 1000 >/proc/self/oom_score_adj",
    );
    rig.sh(
        "m",
        "perl -MSocket -e 'socket(my $ping, AF_INET, SOCK_DGRAM, getprotobyname(\"icmp\")) or die $!'",
    );
    rig.finish();
}

/// A program cannot reopen the caller's files with other access rights.
fn files_of_the_caller_are_not_passed_into_a_machine(rig: Rig) {
    rig.create("m");
    let (mut input, mut output) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    input.write_all(b"typed\n").unwrap();
    input.rewind().unwrap();
    let script = "read line; echo $line; for fd in 0 1 2; do stat -L -c %F /proc/self/fd/$fd; done";
    let argv = ["/bin/sh", "-c", script].map(str::to_owned);
    let terminal = Terminal::Descriptors(input.as_fd(), output.as_fd(), output.as_fd());
    assert_eq!(rig.local.exec("m", &argv, &BTreeMap::new(), terminal).unwrap(), 0);
    output.rewind().unwrap();
    let text = std::io::read_to_string(output).unwrap();
    assert_eq!(text, "typed\nfifo\nfifo\nfifo\n");
    rig.finish();
}

/// The host's loopback, its address for other networks, if any, and the gateway.
fn addresses(gateway: Ipv4Addr) -> Vec<Ipv4Addr> {
    let mut found = vec![Ipv4Addr::LOCALHOST, gateway];
    let outside = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // This only selects a route; nothing is sent.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    if let Ok(std::net::SocketAddr::V4(address)) = outside {
        found.push(*address.ip());
    }
    found
}

/// The major and minor number of a disk, for creating a node.
fn first_disk() -> (u32, u32) {
    let text = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let number = |word: Option<&str>| word.and_then(|it| it.parse().ok());
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((number(words.next())?, number(words.next())?))
        })
        .find(|(major, _)| ![1, 7].contains(major))
        .unwrap_or((8, 0))
}

fn uuid() -> String {
    fs::read_to_string(Path::new("/proc/sys/kernel/random/uuid")).unwrap().trim().to_owned()
}
