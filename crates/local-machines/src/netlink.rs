//! The few rtnetlink calls that machines need. They are implemented here because no external tool may be required, and
//! the available crates add an async runtime and many dependencies for six types of messages.
//!
//! Message layouts are those of rtnetlink(7). Every request asks for an acknowledgement.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    libc,
    sys::{
        socket::{AddressFamily, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt},
        time::TimeVal,
    },
};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const NESTED: u16 = 0x8000;
const IFF_UP: u32 = 1;

/// A route socket in the network namespace of the thread that opened it.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            Some(SockProtocol::NetlinkRoute),
        )?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    pub(crate) fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut message = link(0, 0);
        message.string(IFLA_IFNAME, name);
        message.nest(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "bridge"));
        self.call(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, message)
    }

    /// Creates a veth pair: `name` in this namespace, attached to `bridge`, and `peer` in another network namespace.
    pub(crate) fn add_veth(
        &mut self,
        name: &str,
        bridge: u32,
        peer: &str,
        namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let mut message = link(0, IFF_UP);
        message.string(IFLA_IFNAME, name);
        message.bytes(IFLA_MASTER, &bridge.to_ne_bytes());
        message.nest(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |other| {
                    other.0.extend_from_slice(&link(0, 0).0);
                    other.string(IFLA_IFNAME, peer);
                    other.bytes(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
                });
            });
        });
        self.call(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, message)
    }

    /// Deletes a link. Succeeds if it does not exist.
    pub(crate) fn delete_link(&mut self, name: &str) -> io::Result<()> {
        match index(name) {
            Ok(index) => match self.call(RTM_DELLINK, 0, link(index, 0)) {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
                other => other,
            },
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn set_up(&mut self, index: u32) -> io::Result<()> {
        self.call(RTM_NEWLINK, 0, link(index, IFF_UP))
    }

    pub(crate) fn add_address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut message = Message(vec![libc::AF_INET as u8, prefix, 0, 0]);
        message.0.extend_from_slice(&index.to_ne_bytes());
        message.bytes(IFA_LOCAL, &address.octets());
        message.bytes(IFA_ADDRESS, &address.octets());
        self.call(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, message)
    }

    pub(crate) fn add_default_route(&mut self, gateway: Ipv4Addr) -> io::Result<()> {
        // family, dst_len, src_len, tos, table main, protocol boot, scope universe, type unicast, flags
        let mut message = Message(vec![libc::AF_INET as u8, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]);
        message.bytes(RTA_GATEWAY, &gateway.octets());
        self.call(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, message)
    }

    /// Destinations of all IPv4 routes of this namespace, including local addresses.
    pub(crate) fn routes(&mut self) -> io::Result<Vec<(Ipv4Addr, u8)>> {
        let message = Message(vec![libc::AF_INET as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut routes = Vec::new();
        self.request(RTM_GETROUTE, NLM_F_DUMP, message, |body| {
            let Some(prefix) = body.get(1).copied() else { return };
            let mut rest = body.get(12..).unwrap_or_default();
            while let Some((kind, value, next)) = attribute(rest) {
                if let (RTA_DST, Ok(octets)) = (kind, <[u8; 4]>::try_from(value)) {
                    routes.push((Ipv4Addr::from(octets), prefix));
                }
                rest = next;
            }
        })?;
        Ok(routes)
    }

    fn call(&mut self, kind: u16, flags: u16, message: Message) -> io::Result<()> {
        self.request(kind, flags | NLM_F_ACK, message, |_| ())
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        message: Message,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence += 1;
        let mut frame = Vec::with_capacity(16 + message.0.len());
        frame.extend_from_slice(&((16 + message.0.len()) as u32).to_ne_bytes());
        frame.extend_from_slice(&kind.to_ne_bytes());
        frame.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        frame.extend_from_slice(&self.sequence.to_ne_bytes());
        frame.extend_from_slice(&0u32.to_ne_bytes());
        frame.extend_from_slice(&message.0);
        send(self.socket.as_raw_fd(), &frame, nix::sys::socket::MsgFlags::empty())?;
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            let got = recv(self.socket.as_raw_fd(), &mut buffer, nix::sys::socket::MsgFlags::empty())?;
            let mut rest = &buffer[..got];
            while rest.len() >= 16 {
                let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                if length < 16 || length > rest.len() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let (this, next) = rest.split_at(length);
                rest = next.get(align(length) - length..).unwrap_or_default();
                if u32::from_ne_bytes([this[8], this[9], this[10], this[11]]) != self.sequence {
                    continue;
                }
                match u16::from_ne_bytes([this[4], this[5]]) {
                    NLMSG_ERROR if length >= 20 => {
                        let errno = -i32::from_ne_bytes([this[16], this[17], this[18], this[19]]);
                        return if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) };
                    }
                    NLMSG_DONE => return Ok(()),
                    _ => each(&this[16..]),
                }
            }
        }
    }
}

/// The index of a link in this network namespace.
pub(crate) fn index(name: &str) -> io::Result<u32> {
    Ok(nix::net::if_::if_nametoindex(name)?)
}

struct Message(Vec<u8>);

fn link(index: u32, up: u32) -> Message {
    let mut header = vec![0u8; 4];
    header.extend_from_slice(&index.to_ne_bytes());
    header.extend_from_slice(&up.to_ne_bytes());
    header.extend_from_slice(&up.to_ne_bytes());
    Message(header)
}

impl Message {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(align(self.0.len()), 0);
    }

    fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message(Vec::new());
        fill(&mut inner);
        self.bytes(kind | NESTED, &inner.0);
    }
}

fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    let value = bytes.get(4..length)?;
    Some((kind, value, bytes.get(align(length)..).unwrap_or_default()))
}

fn align(length: usize) -> usize {
    length.div_ceil(4) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_parsed() {
        let mut message = Message(Vec::new());
        message.string(IFLA_IFNAME, "eth0");
        message.bytes(IFLA_MASTER, &7u32.to_ne_bytes());
        assert_eq!(message.0.len() % 4, 0);
        let (kind, value, rest) = attribute(&message.0).unwrap();
        assert_eq!((kind, value), (IFLA_IFNAME, &b"eth0\0"[..]));
        let (kind, value, rest) = attribute(rest).unwrap();
        assert_eq!((kind, value, rest.len()), (IFLA_MASTER, &7u32.to_ne_bytes()[..], 0));
        assert!(attribute(&[200, 0, 1, 0]).is_none());
    }

    #[test]
    fn routes_of_this_host_include_loopback() {
        let routes = Netlink::open().unwrap().routes().unwrap();
        assert!(routes.iter().any(|(address, _)| address.is_loopback()), "{routes:?}");
    }
}
