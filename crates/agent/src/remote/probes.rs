//! The statuses of probes in the plan secret. Pure.

use std::collections::BTreeMap;

use drover_plan::{ProbeStatus, keys};

use super::secret::Data;

/// Merges changed probe statuses into the data. The server treats a missing key as "all probes pass": so the key is not
/// written while the first results of a plan are `awaited`, and is written at once for a plan without probes.
pub fn set_probes(data: &mut Data, statuses: &BTreeMap<String, ProbeStatus>, awaited: bool) {
    if awaited && statuses.is_empty() && !data.contains_key(keys::PROBE_STATUSES) {
        return;
    }
    let known = data.get(keys::PROBE_STATUSES).map(|bytes| drover_plan::from_slice(bytes).ok());
    if known != Some(Some(statuses.clone())) {
        data.insert(keys::PROBE_STATUSES.into(), drover_plan::to_vec(statuses).unwrap_or_default());
    }
}

/// How probe statuses differ from those in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeChange {
    /// In whether a probe is healthy, or in which probes there are.
    Health,
    /// Only in how often probes have succeeded or failed.
    Counts,
}

/// How [`set_probes`] would change what is known of the probes.
pub fn probes_changed(
    known: Option<&Vec<u8>>,
    statuses: &BTreeMap<String, ProbeStatus>,
    awaited: bool,
) -> Option<ProbeChange> {
    let mut data: Data =
        known.map(|known| (keys::PROBE_STATUSES.to_owned(), known.clone())).into_iter().collect();
    set_probes(&mut data, statuses, awaited);
    if data.get(keys::PROBE_STATUSES) == known {
        return None;
    }
    let known: BTreeMap<String, ProbeStatus> =
        known.and_then(|known| drover_plan::from_slice(known).ok()).unwrap_or_default();
    let health = |all: &BTreeMap<String, ProbeStatus>| -> Vec<(String, bool)> {
        all.iter().map(|(name, status)| (name.clone(), status.healthy)).collect()
    };
    let same = health(&known) == health(statuses) && !statuses.is_empty();
    Some(if same { ProbeChange::Counts } else { ProbeChange::Health })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_health_are_distinguished() {
        let status = |healthy, successes, failures| ProbeStatus {
            healthy,
            success_count: successes,
            failure_count: failures,
        };
        let known = br#"{"a":{"failureCount":1},"b":{"successCount":1,"healthy":true}}"#.to_vec();
        let change = |a: ProbeStatus, b: ProbeStatus| {
            let statuses = [("a".to_owned(), a), ("b".to_owned(), b)].into();
            probes_changed(Some(&known), &statuses, true)
        };
        let (a, b) = (status(false, 0, 1), status(true, 1, 0));
        assert_eq!(change(a, b), None);
        assert_eq!(change(status(false, 0, 2), b), Some(ProbeChange::Counts));
        assert_eq!(change(status(true, 1, 0), b), Some(ProbeChange::Health));
        assert_eq!(change(a, status(false, 0, 5)), Some(ProbeChange::Health));
        let one = [("a".to_owned(), a)].into();
        assert_eq!(probes_changed(Some(&known), &one, true), Some(ProbeChange::Health), "another plan");
        assert_eq!(probes_changed(None, &BTreeMap::new(), true), None, "still awaited");
        assert_eq!(probes_changed(None, &BTreeMap::new(), false), Some(ProbeChange::Health));
    }

    #[test]
    fn agent_check_25_equal_probe_statuses_write_nothing() {
        let statuses = BTreeMap::from([(
            "a".to_owned(),
            ProbeStatus { healthy: true, success_count: 1, failure_count: 0 },
        )]);
        let known = br#"{"a":{"successCount":1,"healthy":true}}"#.to_vec();
        let mut secret = Data::from([(keys::PROBE_STATUSES.to_owned(), known)]);
        let before = secret.clone();
        set_probes(&mut secret, &statuses, true);
        assert_eq!(secret, before, "a different order of keys is not a change");
        set_probes(&mut secret, &BTreeMap::new(), true);
        assert_eq!(secret[keys::PROBE_STATUSES], b"{}");
        let mut fresh = Data::new();
        set_probes(&mut fresh, &BTreeMap::new(), true);
        assert_eq!(fresh, Data::new(), "there are no results yet");
        set_probes(&mut fresh, &BTreeMap::new(), false);
        assert_eq!(fresh[keys::PROBE_STATUSES], b"{}", "there are no probes");
    }
}
