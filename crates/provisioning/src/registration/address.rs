//! Addresses that a machine says it has: other machines will call there. Pure.

use std::net::IpAddr;

use crate::init::nodemarks::is_domain;

/// Why other machines cannot reach a machine at this address.
pub fn problem(address: &str) -> Option<&'static str> {
    match address.parse::<IpAddr>() {
        Ok(ip) => ip_problem(ip.to_canonical()),
        Err(_) => name_problem(address),
    }
}

fn ip_problem(ip: IpAddr) -> Option<&'static str> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    [
        (ip.is_loopback(), "is a loopback address, which means another machine on every machine"),
        (ip.is_unspecified(), "is the unspecified address"),
        (ip.is_multicast(), "is a multicast address"),
        (broadcast, "is the broadcast address"),
        (link_local, "is a link-local address, which is not routed"),
    ]
    .into_iter()
    .find_map(|(holds, why)| holds.then_some(why))
}

fn name_problem(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    // A name whose end is a number is a mistyped address, and resolvers read it as one.
    if !is_domain(&name) || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some("is neither an IP address nor a host name");
    }
    (last == "localhost").then_some("is a name of the loopback address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_other_machines_can_reach_is_an_address() {
        for good in [
            "10.0.0.1",
            "203.0.113.7",
            "fd00::1",
            "2001:db8::7",
            "node-1.example.com",
            "node",
            "Node.Example",
        ] {
            assert_eq!(problem(good), None, "{good}");
        }
        for (bad, word) in [
            ("127.0.0.1", "loopback"),
            ("127.8.8.8", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("localhost", "loopback"),
            ("a.localhost", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("169.254.169.254", "link-local"),
            ("fe80::1", "link-local"),
            ("10.0.0.300", "neither"),
            ("10.0.0", "neither"),
            ("2130706433", "neither"),
            ("10.0.0.1:6443", "neither"),
            ("http://x", "neither"),
            ("a_b", "neither"),
            ("$(reboot)", "neither"),
            ("a..b", "neither"),
            ("fe80::1%eth0", "neither"),
        ] {
            assert!(problem(bad).is_some_and(|why| why.contains(word)), "{bad}: {:?}", problem(bad));
        }
    }
}
