//! Limits how many Jobs run at once. The others are queued in the order of their arrival.

use std::collections::{HashMap, VecDeque};

use drover_runtime::ObjectKey;

/// The running children, and the queue of Jobs.
#[derive(Debug)]
pub(crate) struct Slots<C> {
    limit: usize,
    running: HashMap<ObjectKey, C>,
    waiting: VecDeque<ObjectKey>,
}

impl<C> Slots<C> {
    /// The minimum limit is 1.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), running: HashMap::new(), waiting: VecDeque::new() }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The number of running and of queued Jobs.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    pub(crate) fn running(&self, key: &ObjectKey) -> Option<&C> {
        self.running.get(key)
    }

    /// Starts the Job or adds it to the queue. Returns `false` if it is queued; it is [`due`](Self::due) when it can
    /// start.
    pub(crate) fn start(&mut self, key: &ObjectKey, child: C) -> bool {
        let place = self.waiting.iter().position(|waiting| waiting == key);
        if place.unwrap_or(self.waiting.len()) >= self.free() {
            if place.is_none() {
                self.waiting.push_back(key.clone());
            }
            return false;
        }
        self.waiting.retain(|waiting| waiting != key);
        self.running.insert(key.clone(), child);
        true
    }

    /// Removes the Job's child, which has exited.
    pub(crate) fn end(&mut self, key: &ObjectKey) {
        self.running.remove(key);
    }

    /// Removes the Job from the queue. Returns `true` if it was queued, because then Jobs behind it may be due.
    pub(crate) fn leave(&mut self, key: &ObjectKey) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting != key);
        self.waiting.len() < before
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(1);
    }

    /// The queued Jobs that can start now.
    pub(crate) fn due(&self) -> Vec<ObjectKey> {
        self.waiting.iter().take(self.free()).cloned().collect()
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.running.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("default", name)
    }

    #[test]
    fn jobs_start_in_order_of_arrival_and_never_exceed_the_limit() {
        let mut slots = Slots::new(2);
        let start = |slots: &mut Slots<()>, name: &str| slots.start(&key(name), ());
        assert!(start(&mut slots, "a") && start(&mut slots, "b"));
        assert!(!start(&mut slots, "c") && !start(&mut slots, "d") && !start(&mut slots, "c"));
        assert_eq!((slots.count(), slots.due()), ((2, 2), vec![]));
        slots.end(&key("a"));
        assert_eq!(slots.due(), [key("c")]);
        assert!(!start(&mut slots, "d") && !start(&mut slots, "e"), "c is first");
        assert!(slots.leave(&key("c")) && !slots.leave(&key("c")));
        assert_eq!(slots.due(), [key("d")]);
        assert!(start(&mut slots, "d"));
        assert_eq!((slots.count(), slots.due()), ((2, 1), vec![]));
        slots.set_limit(3);
        assert_eq!(slots.due(), [key("e")]);
        slots.set_limit(0);
        assert_eq!((slots.limit(), slots.due()), (1, vec![]), "running Jobs are not stopped");
    }
}
