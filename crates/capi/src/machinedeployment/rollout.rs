//! How many Machines each set has during a rollout. Pure arithmetic.

use super::scope::Strategy;

/// The numbers of one set.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Desired.
    pub spec: i32,
    /// Present, including those that are being deleted.
    pub present: i32,
    /// Available.
    pub available: i32,
}

impl Counts {
    /// Machines that are being deleted.
    fn pending(self) -> i32 {
        (self.present - self.spec).max(0)
    }

    /// Machines that stay available in the worst case, when all deleted ones were available.
    fn surely_available(self) -> i32 {
        (self.available - self.pending()).clamp(0, self.spec)
    }
}

/// New replicas: of the newest set, and of the old ones in the given order (oldest first).
pub fn plan(strategy: Strategy, replicas: i32, new: Counts, old: &[Counts]) -> (i32, Vec<i32>) {
    match strategy {
        Strategy::RollingUpdate { max_surge, max_unavailable } => {
            rolling(replicas, max_surge, max_unavailable, new, old)
        }
        Strategy::OnDelete => on_delete(replicas, new, old),
    }
}

fn rolling(
    replicas: i32,
    max_surge: i32,
    max_unavailable: i32,
    new: Counts,
    old: &[Counts],
) -> (i32, Vec<i32>) {
    let new_spec = grow_new(replicas, replicas + max_surge, new, old);
    // The current state of the new set is used: planned Machines are not available yet.
    let mut old_specs: Vec<i32> = old.iter().map(|set| set.spec).collect();
    let all = || old.iter().chain([&new]);
    let total: i32 = all().map(|set| set.spec).sum();
    let pending: i32 = all().map(|set| set.pending()).sum();
    let min_available = replicas - max_unavailable;
    let new_unavailable = (new.spec - new.surely_available()).max(0);
    let mut budget = (total - pending - min_available - new_unavailable).max(0);

    // First the unavailable ones, in the oldest set first.
    for (spec, set) in old_specs.iter_mut().zip(old) {
        let useless = (*spec - set.surely_available()).max(0).min(budget);
        *spec -= useless;
        budget -= useless;
    }
    // Then any, as long as enough stay available even if every deleted Machine was available.
    let removed: i32 = old.iter().zip(&old_specs).map(|(set, spec)| set.spec - spec).sum();
    let available: i32 = all().map(|set| set.surely_available()).sum();
    let mut spare = (available - removed - min_available).max(0).min(budget);
    for spec in &mut old_specs {
        let removed = (*spec).min(spare);
        *spec -= removed;
        spare -= removed;
    }
    let stands_still =
        new_spec == new.spec && old.iter().zip(&old_specs).all(|(set, spec)| set.spec == *spec);
    if stands_still && pending == 0 && new.available >= new.spec {
        // The rollout is stuck: the new set is complete and an old one is not available. Remove one Machine.
        if let Some((spec, _)) = old_specs.iter_mut().zip(old).find(|(_, set)| set.available < set.spec) {
            *spec -= 1;
        }
    }
    (new_spec, old_specs)
}

/// The newest set grows within the limit; it shrinks if it has more than desired.
fn grow_new(replicas: i32, limit: i32, new: Counts, old: &[Counts]) -> i32 {
    if new.spec >= replicas {
        return replicas;
    }
    let total: i32 = old.iter().chain([&new]).map(|set| set.spec.max(set.present)).sum();
    new.spec + (limit - total).max(0).min(replicas - new.spec)
}

fn on_delete(replicas: i32, new: Counts, old: &[Counts]) -> (i32, Vec<i32>) {
    // Machines that users deleted are not recreated: old sets follow what is present.
    let mut old_specs: Vec<i32> = old.iter().map(|set| set.spec.min(set.present)).collect();
    let mut surplus = (old_specs.iter().sum::<i32>() + new.spec.min(replicas) - replicas).max(0);
    for spec in &mut old_specs {
        let removed = (*spec).min(surplus);
        *spec -= removed;
        surplus -= removed;
    }
    (grow_new(replicas, replicas, new, old), old_specs)
}

/// A paused deployment is only scaled, in proportion to its sets.
pub fn proportional(replicas: i32, max_surge: i32, sets: &[Counts]) -> Vec<i32> {
    let mut specs: Vec<i32> = sets.iter().map(|set| set.spec).collect();
    let total: i32 = specs.iter().sum();
    let active = specs.iter().filter(|spec| **spec > 0).count();
    let allowed = if replicas > 0 && active > 1 { replicas + max_surge } else { replicas };
    let mut difference = if active > 1 { allowed.min(total.max(replicas)) - total } else { replicas - total };
    if total == 0 || difference == 0 {
        if let (0, Some(last)) = (total, specs.last_mut()) {
            *last = replicas;
        }
        return specs;
    }
    let mut order: Vec<usize> = (0..specs.len()).filter(|at| specs[*at] > 0).collect();
    order.sort_by_key(|at| std::cmp::Reverse(specs[*at]));
    let whole = difference;
    for at in &order {
        let share = f64::from(whole) * f64::from(sets[*at].spec) / f64::from(total);
        // Shares are smaller than the counts from which they are computed.
        let share = (share.round() as i32).clamp(whole.min(0), whole.max(0));
        let share = if difference > 0 { share.min(difference) } else { share.max(difference) };
        specs[*at] = (specs[*at] + share).max(0);
        difference -= share;
    }
    if let Some(first) = order.first() {
        specs[*first] = (specs[*first] + difference).max(0);
    }
    specs
}
