//! Rate limits: a token bucket per caller. Pure, except for the lock.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How many calls may come at once, and how many per second after that.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub burst: u32,
    pub per_second: f64,
}

/// Callers that are remembered at most; beyond that, those who are not limited at the moment are forgotten.
const MOST_CALLERS: usize = 10_000;

/// One bucket per caller.
pub struct Buckets<K> {
    rate: Rate,
    buckets: Mutex<HashMap<K, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl<K: Eq + Hash> Buckets<K> {
    pub fn new(rate: Rate) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    /// Takes one call; `Err` says after how long there is another one.
    pub fn take(&self, caller: K, now: Instant) -> Result<(), Duration> {
        let Rate { burst, per_second } = self.rate;
        let (burst, rate) = (f64::from(burst), per_second);
        let left = |bucket: &Bucket| {
            let since = now.saturating_duration_since(bucket.at).as_secs_f64();
            (bucket.left + since * rate).min(burst)
        };
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MOST_CALLERS && !buckets.contains_key(&caller) {
            // Who has a full bucket is as good as new.
            buckets.retain(|_, bucket| left(bucket) < burst);
            if buckets.len() >= MOST_CALLERS {
                return Err(Duration::from_secs(1));
            }
        }
        let bucket = buckets.entry(caller).or_insert(Bucket { left: burst, at: now });
        bucket.left = left(bucket);
        bucket.at = bucket.at.max(now);
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / rate));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

/// The caller of an address. For IPv6 it is the network of 64 bits, because a caller can use all of its addresses.
pub fn caller(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

/// Whole seconds for `Retry-After`.
pub fn seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let buckets = Buckets::new(Rate { burst: 3, per_second: 2.0 });
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(buckets.take("a", start), Ok(()));
        }
        assert_eq!(buckets.take("a", start), Err(Duration::from_millis(500)));
        assert_eq!(buckets.take("b", start), Ok(()), "each caller has a bucket of its own");
        let later = start + Duration::from_secs(1);
        assert_eq!([buckets.take("a", later), buckets.take("a", later)], [Ok(()), Ok(())]);
        assert!(buckets.take("a", later).is_err());
        assert_eq!(buckets.take("a", start), Err(Duration::from_millis(500)), "time does not run backwards");
        assert_eq!((seconds(Duration::ZERO), seconds(Duration::from_millis(1001))), (1, 2));
    }

    #[test]
    fn the_number_of_callers_is_bounded() {
        let buckets = Buckets::new(Rate { burst: 1, per_second: 1.0 });
        let start = Instant::now();
        for caller in 0..MOST_CALLERS {
            assert_eq!(buckets.take(caller, start), Ok(()));
        }
        assert!(buckets.take(MOST_CALLERS, start).is_err(), "everybody is limited now");
        assert_eq!(buckets.take(MOST_CALLERS, start + Duration::from_secs(1)), Ok(()));
        assert_eq!(buckets.buckets.lock().len(), 1);
    }

    #[test]
    fn an_ipv6_network_is_one_caller() {
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        assert_eq!(caller(address("2001:db8::1")), caller(address("2001:db8::ffff:1")));
        assert_ne!(caller(address("2001:db8::1")), caller(address("2001:db8:0:1::1")));
        assert_eq!(caller(address("::ffff:10.0.0.1")), address("10.0.0.1"));
    }
}
