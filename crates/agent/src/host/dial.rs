//! Opens a TCP connection to a name that can have many addresses, some of which may not respond.
//!
//! A host often has an IPv6 address but no IPv6 route, so packets are dropped silently. Therefore addresses are tried
//! in parallel with separate timeouts, and the DNS lookup does not count towards them.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{net::TcpStream, task::JoinSet, time};

use super::lookup::Lookups;

/// The time limit of a DNS lookup: enough for a resolver whose first name servers do not respond.
const LOOKUP: Duration = Duration::from_secs(20);
/// The time limit of a connection attempt to one address.
const CONNECT: Duration = Duration::from_secs(10);
/// The delay before the next address is tried in parallel.
const HEAD_START: Duration = Duration::from_millis(300);

/// See the module.
pub(super) async fn connect(lookups: &Lookups, host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = if host == "localhost" {
        // Most probes use this name every few seconds, and the resolver would start a thread each time.
        vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
    } else if let Ok(address) = host.parse::<IpAddr>() {
        vec![address]
    } else {
        let found = time::timeout(LOOKUP, lookups.find(host)).await;
        found.map_err(|_| timed_out("DNS lookup timed out"))??
    };
    first(&addresses, move |address| TcpStream::connect(SocketAddr::from((address, port)))).await
}

fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// The first connection that opens. The addresses are tried in order: the next one after an error or after a short
/// delay.
async fn first<T, F>(addresses: &[IpAddr], connect: impl Fn(IpAddr) -> F) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    // Dropping the set aborts the other attempts.
    let mut tries = JoinSet::new();
    let mut rest = addresses.iter();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        if let Some(address) = rest.next() {
            tries.spawn(time::timeout(CONNECT, connect(*address)));
        }
        tokio::select! {
            ended = tries.join_next() => match ended {
                None => return Err(failed),
                Some(Ok(Ok(Ok(opened)))) => return Ok(opened),
                Some(Ok(Ok(Err(error)))) => failed = error,
                Some(Ok(Err(_))) => failed = timed_out("connection attempt timed out"),
                Some(Err(error)) => failed = io::Error::other(error),
            },
            () = time::sleep(HEAD_START), if rest.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::time::Instant;

    use super::*;

    /// The attempts with their times in milliseconds, and the result. The last byte of an address selects its
    /// behaviour.
    async fn dial(last: &[u8]) -> (Result<u8, io::ErrorKind>, Vec<(u8, u128)>, u128) {
        let began = Instant::now();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let addresses: Vec<IpAddr> = last.iter().map(|last| [192, 0, 2, *last].into()).collect();
        let opened = first(&addresses, |address| {
            let IpAddr::V4(address) = address else { unreachable!("all addresses are IPv4") };
            let last = address.octets()[3];
            asked.lock().unwrap().push((last, began.elapsed().as_millis()));
            async move {
                match last {
                    SILENT => std::future::pending().await,
                    REFUSING => return Err(io::ErrorKind::ConnectionRefused.into()),
                    SLOW => time::sleep(Duration::from_secs(8)).await,
                    _ => {}
                }
                Ok(last)
            }
        })
        .await;
        let asked = asked.lock().unwrap().clone();
        (opened.map_err(|error| error.kind()), asked, began.elapsed().as_millis())
    }

    const SILENT: u8 = 1;
    const REFUSING: u8 = 2;
    const SLOW: u8 = 3;
    const GOOD: u8 = 4;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_respond_does_not_delay_the_others() {
        assert_eq!(dial(&[SILENT, GOOD]).await, (Ok(GOOD), vec![(SILENT, 0), (GOOD, 300)], 300));
        let (opened, asked, _) = dial(&[SILENT, SILENT, REFUSING, GOOD]).await;
        assert_eq!(opened, Ok(GOOD));
        assert_eq!(
            asked,
            [(SILENT, 0), (SILENT, 300), (REFUSING, 600), (GOOD, 600)],
            "a refused connection is not waited for"
        );
        assert_eq!(dial(&[GOOD, SILENT]).await, (Ok(GOOD), vec![(GOOD, 0)], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn each_address_has_its_own_timeout() {
        assert_eq!(dial(&[SLOW]).await.0, Ok(SLOW));
        let (opened, _, took) =
            dial(&[SILENT; 9].iter().copied().chain([SLOW]).collect::<Vec<_>>()[..]).await;
        assert_eq!((opened, took), (Ok(SLOW), 9 * 300 + 8000), "although the first attempts have timed out");
        let (opened, _, took) = dial(&[SILENT, SILENT]).await;
        assert_eq!((opened, took), (Err(io::ErrorKind::TimedOut), 10_300));
        assert_eq!(dial(&[REFUSING, REFUSING]).await.0, Err(io::ErrorKind::ConnectionRefused));
        assert_eq!(dial(&[]).await.0, Err(io::ErrorKind::NotFound));
    }
}
