//! Local machines change nothing of their host: not as root, not as an ordinary user.
#![allow(clippy::unwrap_used)]

mod attack;
#[path = "../support/mod.rs"]
mod support;

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::{linux::net::SocketAddrExt, unix::net::UnixListener},
    path::Path,
};

use attack::Host;
use drover_machine::local::{CreateOptions, ReadOnlyMount};
use support::Rig;

as_root_and_as_user! {
    a_machine_cannot_change_its_host
}

/// Where the machine sees this very program.
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
    let breaches: Vec<&str> = report.lines().filter(|line| line.starts_with("BREACH")).collect();
    let attempts = report.lines().find_map(|line| line.strip_prefix("ATTEMPTS ")).expect(&report);
    println!("{attempts} attempts");
    assert!(attempts.parse::<u32>().unwrap() > 1000, "{report}");
    assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), breaches.join("\n"));
    rig.finish();
}

#[test]
#[ignore = "runs inside of a machine"]
fn program_in_a_machine() {
    attack::attack(&std::env::var("DROVER_TEST_ATTACK").unwrap());
}

/// The host's loopback, the address that it uses for the outside, if it has one, and the gateway.
fn addresses(gateway: Ipv4Addr) -> Vec<Ipv4Addr> {
    let mut found = vec![Ipv4Addr::LOCALHOST, gateway];
    let outside = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // Only chooses a route; nothing is sent.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    if let Ok(std::net::SocketAddr::V4(address)) = outside {
        found.push(*address.ip());
    }
    found
}

/// Major and minor of a disk, to make a node of.
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
