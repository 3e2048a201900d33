//! Retries failed items, each with its own growing delay.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

const FIRST_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Items that wait for a retry.
#[derive(Debug)]
pub(crate) struct Retries<T> {
    due: BTreeMap<(Instant, u64), T>,
    failures: HashMap<T, u32>,
    sequence: u64,
}

impl<T> Default for Retries<T> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), failures: HashMap::new(), sequence: 0 }
    }
}

impl<T: Clone + Eq + Hash> Retries<T> {
    /// Schedules a retry.
    pub(crate) fn failed(&mut self, item: T) {
        let failures = self.failures.entry(item.clone()).or_insert(0);
        let delay = FIRST_DELAY.saturating_mul(1 << (*failures).min(16)).min(MAX_DELAY);
        *failures += 1;
        self.sequence += 1;
        self.due.insert((Instant::now() + delay, self.sequence), item);
    }

    /// Forgets the item after a success.
    pub(crate) fn succeeded(&mut self, item: &T) {
        self.failures.remove(item);
    }

    /// Removes and returns the items that are due.
    pub(crate) fn take_due(&mut self) -> Vec<T> {
        let later = self.due.split_off(&(Instant::now(), u64::MAX));
        std::mem::replace(&mut self.due, later).into_values().collect()
    }

    /// Waits until an item is due; forever if there are none.
    pub(crate) async fn due(&self) {
        match self.due.first_key_value() {
            Some(((at, _), _)) => tokio::time::sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_until_success() {
        let mut retries = Retries::default();
        let start = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..3 {
            retries.failed("x");
            let before = Instant::now();
            retries.due().await;
            waits.push(before.elapsed());
            assert_eq!(retries.take_due(), ["x"]);
        }
        assert!(waits.windows(2).all(|w| w[1] > w[0]), "{waits:?}");
        assert!(start.elapsed() < Duration::from_secs(1));
        retries.succeeded(&"x");
        retries.failed("x");
        let before = Instant::now();
        retries.due().await;
        assert!(before.elapsed() <= waits[0] + Duration::from_millis(1));
        assert!(tokio::time::timeout(MAX_DELAY * 2, Retries::<&str>::default().due()).await.is_err());
    }
}
