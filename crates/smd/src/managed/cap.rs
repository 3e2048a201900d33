//! Merges old updaters, so that managedFields does not grow without bound.

use std::collections::BTreeMap;

use super::{Entry, Managed, Operation};

const ANCIENT_CHANGES: &str = "ancient-changes";

/// Merges the oldest updaters, version by version, until at most `max` are left or each is the only one of its version.
/// Upstream can lose a bucket that is not the oldest of its version; this does not.
pub(super) fn cap(managed: &mut Managed, max: usize) {
    let mut updaters: Vec<Entry> =
        managed.entries.iter().filter(|entry| entry.operation == Operation::Update).cloned().collect();
    let mut count = updaters.len();
    if count <= max {
        return;
    }
    updaters.sort_by_cached_key(|entry| (entry.time.unwrap_or(0), entry.identifier()));
    let mut first_of_version: BTreeMap<String, Entry> = BTreeMap::new();
    for entry in updaters {
        if count <= max {
            break;
        }
        let Some(first) = first_of_version.get(&entry.api_version) else {
            first_of_version.insert(entry.api_version.clone(), entry);
            continue;
        };
        let bucket =
            Entry { manager: ANCIENT_CHANGES.to_owned(), subresource: String::new(), ..entry.clone() };
        if bucket.is_same_owner(&entry) {
            continue;
        }
        let collected = match managed.take(&bucket).or_else(|| managed.take(first)) {
            Some(collected) => collected.fields,
            None => continue,
        };
        managed.take(&entry);
        // The time of the latest change in the bucket.
        managed.entries.push(Entry { fields: entry.fields.union(&collected), ..bucket });
        count -= 1;
    }
}
