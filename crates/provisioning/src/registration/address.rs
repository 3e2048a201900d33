//! Addresses that a machine says it has: other machines will call there. Pure.

use std::net::{IpAddr, Ipv4Addr};

use crate::init::pools::nodemarks::is_domain;

/// Names that `/etc/hosts` of common systems gives the loopback address.
const LOOPBACK_NAMES: [&str; 4] =
    ["localhost.localdomain", "localhost6.localdomain6", "ip6-localhost", "ip6-loopback"];

/// Why other machines cannot reach a machine at this address.
pub fn problem(address: &str) -> Option<&'static str> {
    match address.parse::<IpAddr>() {
        Ok(ip) => ip_problem(inner(ip)),
        Err(_) => name_problem(address),
    }
}

/// The IPv4 address inside an IPv6 address that means it: mapped, compatible (RFC 4291) or translated (RFC 6052).
fn inner(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let segments = v6.segments();
    let embedded = segments[..6] == [0; 6] && segments[6] != 0 || segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    match embedded {
        true => IpAddr::V4(Ipv4Addr::from_bits(u32::from(segments[6]) << 16 | u32::from(segments[7]))),
        false => ip.to_canonical(),
    }
}

fn ip_problem(ip: IpAddr) -> Option<&'static str> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    let this_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0);
    let reserved = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] >= 240);
    [
        (ip.is_loopback(), "is a loopback address, which means another machine on every machine"),
        (ip.is_unspecified(), "is the unspecified address"),
        (ip.is_multicast(), "is a multicast address"),
        (broadcast, "is the broadcast address"),
        (this_network, "is in 0.0.0.0/8, which no machine can have"),
        (reserved, "is in 240.0.0.0/4, which is reserved"),
        (link_local, "is a link-local address, which is not routed"),
    ]
    .into_iter()
    .find_map(|(holds, why)| holds.then_some(why))
}

fn name_problem(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    // A name whose end is a number, also a hexadecimal one, is a mistyped address, and resolvers read it as one.
    let hexadecimal =
        last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if !is_domain(&name) || last.bytes().all(|byte| byte.is_ascii_digit()) || hexadecimal {
        return Some("is neither an IP address nor a host name");
    }
    let loopback = last == "localhost" || LOOPBACK_NAMES.contains(&name.as_str());
    loopback.then_some("is a name of the loopback address")
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
            "64:ff9b::a00:1",
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
            ("localhost.localdomain", "loopback"),
            ("ip6-localhost", "loopback"),
            ("::127.0.0.1", "loopback"),
            ("64:ff9b::7f00:1", "loopback"),
            ("0.0.0.5", "0.0.0.0/8"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.254", "reserved"),
            ("0x7f000001", "neither"),
            ("0x7f.0.0.0x1", "neither"),
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
