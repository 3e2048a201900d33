//! Which Jobs may run now: at most so many at once, and the others in the order in which they came.

use std::collections::{HashMap, VecDeque};

use drover_runtime::ObjectKey;

/// Children that run, and Jobs that wait for one of them to end.
#[derive(Debug)]
pub(crate) struct Slots<C> {
    limit: usize,
    running: HashMap<ObjectKey, C>,
    waiting: VecDeque<ObjectKey>,
}

impl<C> Slots<C> {
    /// At least one Job may run.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), running: HashMap::new(), waiting: VecDeque::new() }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many run, and how many wait.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    pub(crate) fn running(&self, key: &ObjectKey) -> Option<&C> {
        self.running.get(key)
    }

    /// Takes a place, or one in the queue. `false`: it has to wait, and is [`due`](Self::due) when its turn comes.
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

    /// The Job's child has ended.
    pub(crate) fn end(&mut self, key: &ObjectKey) {
        self.running.remove(key);
    }

    /// The Job needs no place any more. `true` if it waited, so that those behind it may be due.
    pub(crate) fn leave(&mut self, key: &ObjectKey) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting != key);
        self.waiting.len() < before
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.max(1);
    }

    /// The Jobs that wait and may start now.
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
    fn jobs_start_in_the_order_of_their_coming_and_never_more_than_the_limit() {
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
        assert_eq!((slots.limit(), slots.due()), (1, vec![]), "those that run are not ended");
    }
}
