//! Counts the connections whose caller is not known, per address and in total, and chooses which of them make room.
//!
//! Agents of a whole site share one address behind NAT, and so may an attacker and an administrator. Therefore:
//!
//! * Only connections without a known caller count.
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

/// A connection younger than this is not replaced by one of the same address, or of one that has as many: otherwise no
/// handshake would be completed during a flood.
const GRACE: Duration = Duration::from_millis(500);
/// How often it is logged that connections are refused.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Counts connections of any number of listeners. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Mutex<State>>);

/// What happened since the start, and what is open now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open connections on which no caller is known.
    pub unknown: usize,
    /// Connections that were closed at once, because no other could make room.
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
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
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
    fn makes_room(&self, since: Instant) -> bool {
        self.since <= since && self.requests.load(Ordering::Relaxed) == 0
    }
}

/// A counted connection, until its caller is known or it is closed.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Gate,
    address: IpAddr,
    id: u64,
    /// Requests in flight.
    pub(crate) requests: Arc<AtomicUsize>,
    /// Another connection needs the place.
    pub(crate) evicted: CancellationToken,
}

impl Gate {
    pub fn new(limits: Limits) -> Self {
        let gate = Self::default();
        gate.set_limits(limits);
        gate
    }

    pub fn limits(&self) -> Limits {
        self.0.lock().limits
    }

    /// From now on. A connection that is open has the new deadlines after its next one, and idle ones beyond the new
    /// numbers are closed.
    pub fn set_limits(&self, limits: Limits) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        state.limits = limits;
        let addresses: Vec<_> = state.addresses.keys().copied().collect();
        for address in addresses {
            let own = |state: &State| state.addresses.get(&address).map_or(0, BTreeMap::len);
            while own(&state) > limits.per_address && state.evict(address, now, |_| true) {}
        }
        while state.counts.unknown > limits.total
            && let Some((address, _)) = state.heaviest(now)
            && state.evict(address, now, |_| true)
        {}
    }

    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// A place for a new connection, or none.
    pub(crate) fn admit(&self, address: IpAddr, now: Instant) -> Option<Place> {
        let address = site(address);
        let mut state = self.0.lock();
        let room = state.has_room(address, now);
        state.counts.refused += u64::from(!room);
        state.tell(now);
        if !room {
            return None;
        }
        let (id, requests, evicted) = (state.next, Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        state.next += 1;
        state.counts.unknown += 1;
        let entry =
            Entry { since: now, answered: false, requests: requests.clone(), evicted: evicted.clone() };
        state.addresses.entry(address).or_default().insert(id, entry);
        Some(Place { gate: self.clone(), address, id, requests, evicted })
    }

    /// Closes one connection, because there are no descriptors left.
    pub(crate) fn make_room(&self, now: Instant) {
        let mut state = self.0.lock();
        if let Some((address, _)) = state.heaviest(now) {
            state.evict(address, now, |_| true);
            state.tell(now);
        }
    }

    pub(crate) fn expired(&self) {
        self.0.lock().counts.expired += 1;
    }
}

impl Place {
    /// An anonymous request was answered on this connection. False if there are too many of these.
    pub(crate) fn answered(&self, now: Instant) -> bool {
        let mut state = self.gate.0.lock();
        let Some(own) = state.addresses.get(&self.address) else { return true };
        if own.get(&self.id).is_none_or(|entry| entry.answered) {
            return true;
        }
        let (per_address, total) = (state.limits.per_address / 2, state.limits.total / 2);
        let full = own.values().filter(|entry| entry.answered).count() >= per_address.max(1)
            || state.answered >= total.max(1);
        let room = !full || state.evict(self.address, now, |entry| entry.answered);
        state.counts.refused += u64::from(!room);
        state.tell(now);
        if !room {
            return false;
        }
        state.answered += 1;
        if let Some(own) = state.addresses.get_mut(&self.address).and_then(|own| own.get_mut(&self.id)) {
            own.answered = true;
        }
        true
    }

    /// Does not count any more: the caller is known, or the connection closed.
    pub(crate) fn leave(&self) {
        self.gate.0.lock().remove(self.address, self.id);
    }
}

impl State {
    /// Whether a connection of this address may come, if need be instead of another.
    fn has_room(&mut self, address: IpAddr, now: Instant) -> bool {
        let own = self.addresses.get(&address).map_or(0, BTreeMap::len);
        let patient = now.checked_sub(GRACE).unwrap_or(now);
        if own >= self.limits.per_address {
            return self.evict(address, patient, |_| true);
        }
        if self.counts.unknown < self.limits.total {
            return true;
        }
        match self.heaviest(now) {
            Some((heaviest, weight)) if weight > own + 1 => self.evict(heaviest, now, |_| true),
            Some((heaviest, _)) => self.evict(heaviest, patient, |_| true),
            None => false,
        }
    }

    /// The address with the most connections that can make room, and how many these are.
    fn heaviest(&self, since: Instant) -> Option<(IpAddr, usize)> {
        let weight = |own: &BTreeMap<u64, Entry>| own.values().filter(|e| e.makes_room(since)).count();
        let weighed = self.addresses.iter().map(|(address, own)| (*address, weight(own)));
        weighed.filter(|(_, weight)| *weight > 0).max_by_key(|(_, weight)| *weight)
    }

    /// Closes the oldest connection of an address that can make room and was there at `since`.
    fn evict(&mut self, address: IpAddr, since: Instant, eligible: impl Fn(&Entry) -> bool) -> bool {
        let Some(own) = self.addresses.get(&address) else { return false };
        let oldest = own.iter().find(|(_, entry)| entry.makes_room(since) && eligible(entry));
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
        self.counts.unknown -= 1;
        self.answered -= usize::from(entry.answered);
        Some(entry)
    }

    /// Once per period, not once per connection: a flood must not fill the log.
    fn tell(&mut self, now: Instant) {
        let before = self.told.as_ref().map_or((0, 0), |told| (told.refused, told.evicted));
        if before == (self.counts.refused, self.counts.evicted) {
            return;
        }
        if self.told.as_ref().is_some_and(|told| now.saturating_duration_since(told.at) < TOLD_EVERY) {
            return;
        }
        tracing::warn!(
            refused = self.counts.refused - before.0,
            closed = self.counts.evicted - before.1,
            open = self.counts.unknown,
            "too many unauthenticated connections are open; new ones are refused or replace idle ones"
        );
        self.told = Some(Told { at: now, refused: self.counts.refused, evicted: self.counts.evicted });
    }
}

/// What counts as one address: whoever has an IPv6 address usually has 2^64 of them.
fn site(address: IpAddr) -> IpAddr {
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

    fn gate(per_address: usize, total: usize) -> Gate {
        Gate::new(Limits { per_address, total, ..Limits::default() })
    }

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn an_address_replaces_its_own_oldest_connection_and_takes_none_of_others() {
        let (gate, now) = (gate(2, 100), Instant::now());
        let other = gate.admit(from(2), now).unwrap();
        let (first, second) = (gate.admit(from(1), now).unwrap(), gate.admit(from(1), now).unwrap());
        assert!(gate.admit(from(1), now).is_none(), "both may still be in their handshakes");
        let third = gate.admit(from(1), now + LATER).unwrap();
        assert!(first.evicted.is_cancelled());
        assert!(![&second, &third, &other].iter().any(|place| place.evicted.is_cancelled()));
        // The place was given away: leaving it twice frees nothing more.
        first.leave();
        assert_eq!(gate.counts(), Counts { unknown: 3, refused: 1, evicted: 1, expired: 0 });
    }

    #[test]
    fn connections_with_a_request_in_flight_make_no_room() {
        let (gate, now) = (gate(2, 100), Instant::now());
        let busy = [gate.admit(from(1), now).unwrap(), gate.admit(from(1), now).unwrap()];
        busy.iter().for_each(|place| {
            place.requests.fetch_add(1, Ordering::Relaxed);
        });
        assert!(gate.admit(from(1), now + LATER).is_none());
        busy[1].requests.fetch_sub(1, Ordering::Relaxed);
        assert!(gate.admit(from(1), now + LATER).is_some());
        assert!(busy[1].evicted.is_cancelled() && !busy[0].evicted.is_cancelled());
    }

    #[test]
    fn connections_of_known_callers_do_not_count() {
        let (gate, now) = (gate(1, 1), Instant::now());
        let known = gate.admit(from(1), now).unwrap();
        known.leave();
        assert!(gate.admit(from(1), now).is_some());
        assert!(!known.evicted.is_cancelled());
    }

    #[test]
    fn a_full_port_has_room_for_an_address_with_few_connections() {
        let (gate, now) = (gate(100, 10), Instant::now());
        let quiet = gate.admit(from(2), now).unwrap();
        let flood: Vec<_> = (0..9).map(|_| gate.admit(from(1), now).unwrap()).collect();
        assert!(gate.admit(from(1), now).is_none(), "the flood gets nothing more at once");
        let administrator = gate.admit(from(3), now).unwrap();
        assert!(flood[0].evicted.is_cancelled());
        assert!(!quiet.evicted.is_cancelled() && !administrator.evicted.is_cancelled());
    }

    #[test]
    fn lower_limits_are_in_force_at_once() {
        let (gate, now) = (gate(10, 20), Instant::now());
        let all: Vec<_> = (0..20).map(|n| gate.admit(from(n % 2), now).unwrap()).collect();
        all[0].requests.fetch_add(1, Ordering::Relaxed);
        gate.set_limits(Limits { per_address: 6, total: 8, ..Limits::default() });
        assert_eq!(gate.counts(), Counts { unknown: 8, refused: 0, evicted: 12, expired: 0 });
        assert!(!all[0].evicted.is_cancelled(), "it has a request in flight");
    }

    #[test]
    fn without_descriptors_an_idle_connection_of_the_heaviest_address_is_closed() {
        let (gate, now) = (gate(10, 20), Instant::now());
        let other = gate.admit(from(2), now).unwrap();
        let flood: Vec<_> = (0..3).map(|_| gate.admit(from(1), now).unwrap()).collect();
        gate.make_room(now);
        assert!(flood[0].evicted.is_cancelled() && !flood[1].evicted.is_cancelled());
        assert!(!other.evicted.is_cancelled());
    }

    #[test]
    fn anonymous_answers_take_half_of_the_places_at_most() {
        let (gate, now) = (gate(4, 100), Instant::now());
        let places: Vec<_> = (0..3).map(|_| gate.admit(from(1), now).unwrap()).collect();
        for place in &places {
            place.requests.fetch_add(1, Ordering::Relaxed);
        }
        assert!(places[0].answered(now) && places[1].answered(now));
        assert!(places[0].answered(now), "it has its place already");
        assert!(!places[2].answered(now), "all others are busy");
        places[0].requests.fetch_sub(1, Ordering::Relaxed);
        assert!(places[2].answered(now));
        assert!(places[0].evicted.is_cancelled(), "it was idle");
    }

    #[test]
    fn a_network_of_64_bits_is_one_address_and_a_mapped_address_is_its_own() {
        let same = |a: &str, b: &str| site(a.parse().unwrap()) == site(b.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
    }
}
