//! Counts the unauthenticated connections, per address and in total, and chooses which of them to close to make room.
//!
//! All agents of a counted_address may share one address behind NAT, with an attacker and an administrator. Therefore:
//!
//! * Only unauthenticated connections count.
//! * A new connection replaces the oldest one of its address that has no request in flight. If the total is reached, it
//!   replaces one of the address with the most such connections, so that other addresses can connect at once.
//! * At most half of the connections may be ones on which an anonymous request was answered. The other half is reserved
//!   for new connections, which have a short deadline for their first request.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;

/// A connection younger than this is not replaced by one of the same address, or of an address with as many
/// connections. Otherwise no handshake would complete during a flood.
const GRACE: Duration = Duration::from_millis(500);
/// Refused connections are logged at most once in this period.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Counts the connections of any number of listeners. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct ConnectionLimiter(Arc<Mutex<State>>);

/// Events since the start, and connections that are open now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open unauthenticated connections.
    pub unauthenticated: usize,
    /// Connections that were closed at once because no other could be replaced.
    pub refused: u64,
    /// Connections that were closed to make room.
    pub evicted: u64,
    /// Connections that were closed at a deadline.
    pub expired: u64,
}

#[derive(Debug, Default)]
struct State {
    limits: Limits,
    next: u64,
    addresses: HashMap<IpAddr, BTreeMap<u64, Entry>>,
    answered: usize,
    counts: Counts,
    last_log: Option<LastLog>,
}

#[derive(Debug)]
struct LastLog {
    at: Instant,
    refused: u64,
    evicted: u64,
}

#[derive(Debug)]
struct Entry {
    since: Instant,
    /// An anonymous request was answered on it.
    answered: bool,
    requests: Arc<AtomicUsize>,
    evicted: CancellationToken,
}

impl Entry {
    fn is_replaceable(&self, since: Instant) -> bool {
        self.since <= since && self.requests.load(Ordering::Relaxed) == 0
    }
}

/// A counted connection, until its caller is authenticated or it is closed.
#[derive(Debug)]
pub(crate) struct Slot {
    limiter: ConnectionLimiter,
    address: IpAddr,
    id: u64,
    /// Requests in flight.
    pub(crate) requests: Arc<AtomicUsize>,
    /// Cancelled when another connection replaces this one.
    pub(crate) evicted: CancellationToken,
}

impl ConnectionLimiter {
    pub fn new(limits: Limits) -> Self {
        let limiter = Self::default();
        limiter.set_limits(limits);
        limiter
    }

    pub fn limits(&self) -> Limits {
        self.0.lock().limits
    }

    /// Changes the limits. An open connection uses the new deadlines after its current one, and idle connections beyond
    /// the new numbers are closed.
    pub fn set_limits(&self, limits: Limits) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        state.limits = limits;
        let addresses: Vec<_> = state.addresses.keys().copied().collect();
        for address in addresses {
            let own = |state: &State| state.addresses.get(&address).map_or(0, BTreeMap::len);
            while own(&state) > limits.per_address && state.evict(address, now, |_| true) {}
        }
        while state.counts.unauthenticated > limits.total
            && let Some((address, _)) = state.heaviest(now)
            && state.evict(address, now, |_| true)
        {}
    }

    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Admits a new connection, if there is room.
    pub(crate) fn admit(&self, address: IpAddr, now: Instant) -> Option<Slot> {
        let address = counted_address(address);
        let mut state = self.0.lock();
        let room = state.has_room(address, now);
        state.counts.refused += u64::from(!room);
        state.log_refusals(now);
        if !room {
            return None;
        }
        let (id, requests, evicted) = (state.next, Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        state.next += 1;
        state.counts.unauthenticated += 1;
        let entry =
            Entry { since: now, answered: false, requests: requests.clone(), evicted: evicted.clone() };
        state.addresses.entry(address).or_default().insert(id, entry);
        Some(Slot { limiter: self.clone(), address, id, requests, evicted })
    }

    /// Closes one connection, because no descriptors are left.
    pub(crate) fn make_room(&self, now: Instant) {
        let mut state = self.0.lock();
        if let Some((address, _)) = state.heaviest(now) {
            state.evict(address, now, |_| true);
            state.log_refusals(now);
        }
    }

    pub(crate) fn expired(&self) {
        self.0.lock().counts.expired += 1;
    }
}

impl Slot {
    /// Counts a connection on which an anonymous request was answered. False if there are too many of these.
    pub(crate) fn answered(&self, now: Instant) -> bool {
        let mut state = self.limiter.0.lock();
        let Some(own) = state.addresses.get(&self.address) else { return true };
        if own.get(&self.id).is_none_or(|entry| entry.answered) {
            return true;
        }
        let (per_address, total) = (state.limits.per_address / 2, state.limits.total / 2);
        let full = own.values().filter(|entry| entry.answered).count() >= per_address.max(1)
            || state.answered >= total.max(1);
        let room = !full || state.evict(self.address, now, |entry| entry.answered);
        state.counts.refused += u64::from(!room);
        state.log_refusals(now);
        if !room {
            return false;
        }
        state.answered += 1;
        if let Some(own) = state.addresses.get_mut(&self.address).and_then(|own| own.get_mut(&self.id)) {
            own.answered = true;
        }
        true
    }

    /// Stops counting the connection: the caller is authenticated, or the connection closed.
    pub(crate) fn leave(&self) {
        self.limiter.0.lock().remove(self.address, self.id);
    }
}

impl State {
    /// Whether a connection of this address may be opened, if necessary by replacing another.
    fn has_room(&mut self, address: IpAddr, now: Instant) -> bool {
        let own = self.addresses.get(&address).map_or(0, BTreeMap::len);
        let patient = now.checked_sub(GRACE).unwrap_or(now);
        if own >= self.limits.per_address {
            return self.evict(address, patient, |_| true);
        }
        if self.counts.unauthenticated < self.limits.total {
            return true;
        }
        match self.heaviest(now) {
            Some((heaviest, weight)) if weight > own + 1 => self.evict(heaviest, now, |_| true),
            Some((heaviest, _)) => self.evict(heaviest, patient, |_| true),
            None => false,
        }
    }

    /// The address with the most connections that can be replaced, and their number.
    fn heaviest(&self, since: Instant) -> Option<(IpAddr, usize)> {
        let weight = |own: &BTreeMap<u64, Entry>| own.values().filter(|e| e.is_replaceable(since)).count();
        let weighed = self.addresses.iter().map(|(address, own)| (*address, weight(own)));
        weighed.filter(|(_, weight)| *weight > 0).max_by_key(|(_, weight)| *weight)
    }

    /// Closes the oldest connection of an address that can be replaced and was there at `since`.
    fn evict(&mut self, address: IpAddr, since: Instant, eligible: impl Fn(&Entry) -> bool) -> bool {
        let Some(own) = self.addresses.get(&address) else { return false };
        let oldest = own.iter().find(|(_, entry)| entry.is_replaceable(since) && eligible(entry));
        let Some(id) = oldest.map(|(id, _)| *id) else { return false };
        if let Some(entry) = self.remove(address, id) {
            entry.evicted.cancel();
        }
        self.counts.evicted += 1;
        true
    }

    fn remove(&mut self, address: IpAddr, id: u64) -> Option<Entry> {
        let own = self.addresses.get_mut(&address)?;
        let entry = own.remove(&id)?;
        if own.is_empty() {
            self.addresses.remove(&address);
        }
        self.counts.unauthenticated -= 1;
        self.answered -= usize::from(entry.answered);
        Some(entry)
    }

    /// Logs once per period, not once per connection: a flood must not fill the log.
    fn log_refusals(&mut self, now: Instant) {
        let before = self.last_log.as_ref().map_or((0, 0), |last_log| (last_log.refused, last_log.evicted));
        if before == (self.counts.refused, self.counts.evicted) {
            return;
        }
        if self
            .last_log
            .as_ref()
            .is_some_and(|last_log| now.saturating_duration_since(last_log.at) < LOG_PERIOD)
        {
            return;
        }
        tracing::warn!(
            refused = self.counts.refused - before.0,
            closed = self.counts.evicted - before.1,
            open = self.counts.unauthenticated,
            "too many unauthenticated connections are open; new ones are refused or replace idle ones"
        );
        self.last_log = Some(LastLog { at: now, refused: self.counts.refused, evicted: self.counts.evicted });
    }
}

/// The address by which connections are counted: a client with an IPv6 address usually has 2^64 of them.
fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(1);

    fn limiter(per_address: usize, total: usize) -> ConnectionLimiter {
        ConnectionLimiter::new(Limits { per_address, total, ..Limits::default() })
    }

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn an_address_replaces_only_its_own_oldest_connection() {
        let (limiter, now) = (limiter(2, 100), Instant::now());
        let other = limiter.admit(from(2), now).unwrap();
        let (first, second) = (limiter.admit(from(1), now).unwrap(), limiter.admit(from(1), now).unwrap());
        assert!(limiter.admit(from(1), now).is_none(), "both may still be in their handshakes");
        let third = limiter.admit(from(1), now + LATER).unwrap();
        assert!(first.evicted.is_cancelled());
        assert!(![&second, &third, &other].iter().any(|slot| slot.evicted.is_cancelled()));
        // The slot was given to another connection: leaving it twice does not free another one.
        first.leave();
        assert_eq!(limiter.counts(), Counts { unauthenticated: 3, refused: 1, evicted: 1, expired: 0 });
    }

    #[test]
    fn connections_with_a_request_in_flight_are_not_replaced() {
        let (limiter, now) = (limiter(2, 100), Instant::now());
        let busy = [limiter.admit(from(1), now).unwrap(), limiter.admit(from(1), now).unwrap()];
        busy.iter().for_each(|slot| {
            slot.requests.fetch_add(1, Ordering::Relaxed);
        });
        assert!(limiter.admit(from(1), now + LATER).is_none());
        busy[1].requests.fetch_sub(1, Ordering::Relaxed);
        assert!(limiter.admit(from(1), now + LATER).is_some());
        assert!(busy[1].evicted.is_cancelled() && !busy[0].evicted.is_cancelled());
    }

    #[test]
    fn connections_of_authenticated_callers_do_not_count() {
        let (limiter, now) = (limiter(1, 1), Instant::now());
        let known = limiter.admit(from(1), now).unwrap();
        known.leave();
        assert!(limiter.admit(from(1), now).is_some());
        assert!(!known.evicted.is_cancelled());
    }

    #[test]
    fn an_address_with_few_connections_is_admitted_when_the_total_is_reached() {
        let (limiter, now) = (limiter(100, 10), Instant::now());
        let idle_since = limiter.admit(from(2), now).unwrap();
        let flood: Vec<_> = (0..9).map(|_| limiter.admit(from(1), now).unwrap()).collect();
        assert!(limiter.admit(from(1), now).is_none(), "the flood is not admitted again at once");
        let administrator = limiter.admit(from(3), now).unwrap();
        assert!(flood[0].evicted.is_cancelled());
        assert!(!idle_since.evicted.is_cancelled() && !administrator.evicted.is_cancelled());
    }

    #[test]
    fn lower_limits_apply_at_once() {
        let (limiter, now) = (limiter(10, 20), Instant::now());
        let all: Vec<_> = (0..20).map(|n| limiter.admit(from(n % 2), now).unwrap()).collect();
        all[0].requests.fetch_add(1, Ordering::Relaxed);
        limiter.set_limits(Limits { per_address: 6, total: 8, ..Limits::default() });
        assert_eq!(limiter.counts(), Counts { unauthenticated: 8, refused: 0, evicted: 12, expired: 0 });
        assert!(!all[0].evicted.is_cancelled(), "it has a request in flight");
    }

    #[test]
    fn without_descriptors_an_idle_connection_of_the_heaviest_address_is_closed() {
        let (limiter, now) = (limiter(10, 20), Instant::now());
        let other = limiter.admit(from(2), now).unwrap();
        let flood: Vec<_> = (0..3).map(|_| limiter.admit(from(1), now).unwrap()).collect();
        limiter.make_room(now);
        assert!(flood[0].evicted.is_cancelled() && !flood[1].evicted.is_cancelled());
        assert!(!other.evicted.is_cancelled());
    }

    #[test]
    fn anonymous_requests_use_at_most_half_of_the_connections() {
        let (limiter, now) = (limiter(4, 100), Instant::now());
        let slots: Vec<_> = (0..3).map(|_| limiter.admit(from(1), now).unwrap()).collect();
        for slot in &slots {
            slot.requests.fetch_add(1, Ordering::Relaxed);
        }
        assert!(slots[0].answered(now) && slots[1].answered(now));
        assert!(slots[0].answered(now), "already counted");
        assert!(!slots[2].answered(now), "all other connections are busy");
        slots[0].requests.fetch_sub(1, Ordering::Relaxed);
        assert!(slots[2].answered(now));
        assert!(slots[0].evicted.is_cancelled(), "it was idle");
    }

    #[test]
    fn an_ipv6_64_bit_network_and_a_mapped_ipv4_address_count_as_one_address() {
        let same =
            |a: &str, b: &str| counted_address(a.parse().unwrap()) == counted_address(b.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
    }
}
