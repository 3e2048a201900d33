//! The private network of the machines: its addresses (pure functions) and the set-up of its interfaces.

use std::{collections::BTreeSet, fs, io, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, index};

/// The bridge in the holder's network namespace.
pub(crate) const BRIDGE: &str = "drover0";
const PREFIX: u8 = 20;

/// Recorded in `network.json`, so that addresses and the manager's certificate remain valid across restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Network {
    pub(crate) gateway: Ipv4Addr,
    pub(crate) prefix: u8,
    /// The address that was allocated last. The search for a free address starts after it, so that an address is not
    /// reused immediately.
    pub(crate) last: Ipv4Addr,
}

impl Network {
    /// Selects one of 256 networks in 10.200.0.0–10.215.255.255 that does not overlap with a route of the host. The
    /// search starts at `seed`, so that the data directories on one host usually differ. (K3s uses 10.42 and 10.43.)
    pub(crate) fn choose(seed: u8, routes: &[(Ipv4Addr, u8)]) -> Option<Network> {
        (0..=255u8)
            .map(|step| {
                let number = seed.wrapping_add(step);
                Ipv4Addr::new(10, 200 + (number >> 4), (number & 15) << 4, 0)
            })
            .find(|base| !routes.iter().any(|route| overlaps((*base, PREFIX), *route)))
            .map(|base| {
                let gateway = Ipv4Addr::from(u32::from(base) + 1);
                Network { gateway, prefix: PREFIX, last: gateway }
            })
    }

    /// The next free address, or `None` if all 4,093 are in use.
    pub(crate) fn allot(&self, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
        let base = u32::from(self.gateway) - 1;
        let size = 1u32 << (32 - self.prefix);
        let start = u32::from(self.last).wrapping_sub(base);
        (1..size)
            .map(|step| (start + step) % size)
            .filter(|host| (2..size - 1).contains(host))
            .map(|host| Ipv4Addr::from(base + host))
            .find(|address| !taken.contains(address))
    }

    /// The name of the link on the bridge's side of a machine's veth pair.
    pub(crate) fn link_name(&self, address: Ipv4Addr) -> String {
        format!("m{}", u32::from(address).wrapping_sub(u32::from(self.gateway) - 1))
    }
}

fn overlaps(left: (Ipv4Addr, u8), right: (Ipv4Addr, u8)) -> bool {
    let shared = left.1.min(right.1);
    // A default route overlaps with everything and is ignored.
    shared > 0 && (u32::from(left.0) ^ u32::from(right.0)) >> (32 - u32::from(shared)) == 0
}

/// Sets up loopback and the bridge with the gateway address in this network namespace.
pub(crate) fn bring_up_bridge(network: &Network) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    netlink.set_up(index("lo")?)?;
    netlink.add_bridge(BRIDGE)?;
    let bridge = index(BRIDGE)?;
    netlink.add_address(bridge, network.gateway, network.prefix)?;
    netlink.set_up(bridge)?;
    // With forwarding, a machine that connects to an outside address gets "unreachable" immediately. If /proc is
    // read-only it waits until its own timeout, which is slower but not an error.
    let _ = fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    Ok(())
}

/// Allows programs of this network namespace to ping without raw sockets, which machines cannot open.
pub(crate) fn allow_ping(only_root: bool) {
    let groups = if only_root { "0 0" } else { "0 2147483647" };
    // If /proc is read-only, only ping does not work.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", groups);
}

/// Sets up loopback and `eth0` in a machine.
pub(crate) fn bring_up_machine(address: Ipv4Addr, prefix: u8, gateway: Ipv4Addr) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    netlink.set_up(index("lo")?)?;
    let eth0 = index("eth0")?;
    netlink.add_address(eth0, address, prefix)?;
    netlink.set_up(eth0)?;
    netlink.add_default_route(gateway)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn chosen_network_overlaps_with_no_route_of_the_host() {
        let free = Network::choose(0, &[(ip("0.0.0.0"), 0)]).unwrap();
        assert_eq!((free.gateway, free.prefix), (ip("10.200.0.1"), 20));
        let routes = [(ip("10.200.0.0"), 16), (ip("10.201.3.4"), 32)];
        assert_eq!(Network::choose(0, &routes).unwrap().gateway, ip("10.201.16.1"));
        assert_eq!(Network::choose(255, &[(ip("10.215.240.0"), 24)]).unwrap().gateway, ip("10.200.0.1"));
        assert_eq!(Network::choose(7, &[(ip("10.0.0.0"), 8)]), None);
    }

    #[test]
    fn addresses_are_unique_not_reused_immediately_and_limited() {
        let mut network = Network::choose(3, &[]).unwrap();
        let mut taken = BTreeSet::new();
        for _ in 0..4093 {
            let address = network.allot(&taken).unwrap();
            assert_ne!(address, network.gateway);
            assert!(taken.insert(address));
            network.last = address;
        }
        assert_eq!(network.allot(&taken), None);
        let first = ip("10.200.48.2");
        taken.remove(&first);
        assert_eq!(network.allot(&taken), Some(first));
        network.last = first;
        taken.clear();
        assert_eq!(network.allot(&taken), Some(ip("10.200.48.3")));
        assert_eq!(network.link_name(first), "m2");
    }
}
