//! The network of a machine: itself, the other machines, and the management plane.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::host::RealHost;
use drover_agent::http::{Client, Url, tls};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::net::TcpStream;

const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Host and port of a URL.
pub type Endpoint = (String, u16);

/// The network of all machines. Every machine has its own address in 127.64.0.0/10, so that it can use the ports of
/// K3s.
#[derive(Default)]
pub struct Network {
    taken: Mutex<HashSet<IpAddr>>,
    /// The real address of the management plane, if the address for machines is reachable only for others, such as the
    /// gateway of local machines.
    route: Option<(Endpoint, Endpoint)>,
}

impl Network {
    /// Redirects connections to the host and port of `advertised` to those of `real`.
    pub fn routed(advertised: &str, real: &str) -> io::Result<Self> {
        let route = Some((endpoint(advertised)?, endpoint(real)?));
        Ok(Self { taken: Mutex::default(), route })
    }

    /// Allocates an address that no other machine of this network has. Addresses of other processes usually differ.
    pub fn allocate(&self) -> io::Result<IpAddr> {
        let mut taken = self.taken.lock();
        let found = (0..1000).map(|_| some_address()).find(|address| taken.insert(*address));
        found.ok_or_else(|| io::Error::other("found no free address in 127.64.0.0/10"))
    }

    /// Reserves an address that a machine already has.
    pub fn claim(&self, address: IpAddr) {
        self.taken.lock().insert(address);
    }

    pub fn release(&self, address: IpAddr) {
        self.taken.lock().remove(&address);
    }

    /// Opens a connection from the machine with the address `own`.
    pub(crate) async fn dial(&self, own: IpAddr, host: &str, port: u16) -> io::Result<TcpStream> {
        let routed =
            self.route.as_ref().filter(|(advertised, _)| advertised.0 == host && advertised.1 == port);
        let (host, port) = match routed {
            Some((_, real)) => (real.0.clone(), real.1),
            None if matches!(host, "localhost" | "127.0.0.1" | "[::1]") => (own.to_string(), port),
            None => (host.trim_matches(['[', ']']).to_owned(), port),
        };
        let dialing = tokio::time::timeout(DIAL_LIMIT, TcpStream::connect((host.as_str(), port)));
        let stream = dialing.await.map_err(|_| io::ErrorKind::TimedOut)??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Checks that agents can register at a URL: it serves the CA without credentials.
pub async fn is_management_plane(url: &str) -> bool {
    let host = Arc::new(RealHost::new());
    let request = async {
        let tls = tls::client_config(tls::Trust::Anything, None).ok()?;
        let client = Client::new(host, Url::parse(url).ok()?, None, Some(tls)).ok()?;
        let request = http::Request::get("/cacerts").body(Full::default()).ok()?;
        Some(client.send(request).await.ok()?.status().is_success())
    };
    tokio::time::timeout(DIAL_LIMIT, request).await.ok().flatten().unwrap_or(false)
}

fn endpoint(url: &str) -> io::Result<Endpoint> {
    let parsed = Url::parse(url);
    let parsed = parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    Ok((parsed.host, parsed.port))
}

/// Returns one of four million addresses.
pub fn some_address() -> IpAddr {
    let [a, b, c] = rand::random::<[u8; 3]>();
    Ipv4Addr::new(127, 64 | (a >> 2), b, c.clamp(1, 254)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_never_share_an_address() {
        let network = Network::default();
        let taken: HashSet<IpAddr> = (0..5000).map(|_| network.allocate().unwrap()).collect();
        assert_eq!(taken.len(), 5000);
    }

    #[tokio::test]
    async fn connections_to_the_advertised_address_are_redirected_to_the_server() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let real = format!("https://{}", listener.local_addr().unwrap());
        let network = Network::routed("https://10.9.8.7:8443", &real).unwrap();
        network.dial(some_address(), "10.9.8.7", 8443).await.unwrap();
        listener.accept().await.unwrap();
    }
}
