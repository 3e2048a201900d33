//! The progress of a fleet. Pure functions; times are arguments.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

/// The state of each cluster, by name. Times are relative to the start of the fleet.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    clusters: HashMap<String, Times>,
    ready: usize,
    failed: HashMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Not set for a cluster that an earlier fleet created.
    created: Option<Duration>,
    ready: Option<Duration>,
}

/// The last observed state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Ready,
    Waiting,
    Failed(String),
    Gone,
}

/// Counts and times of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Clusters that exist.
    pub clusters: usize,
    pub ready: usize,
    pub failed: usize,
    /// Time since the start of the fleet.
    pub seconds: f64,
    /// Clusters that became Ready, per second.
    pub rate: f64,
    /// Time from creation to Ready of the clusters that this process created.
    pub p50_seconds: f64,
    pub p99_seconds: f64,
}

impl Progress {
    /// Records that a cluster is about to be created.
    pub fn created(&mut self, name: &str, at: Duration) {
        self.clusters.insert(name.to_owned(), Times { created: Some(at), ready: None });
    }

    /// Records the state of a cluster.
    pub fn record(&mut self, name: &str, state: State, at: Duration) {
        if state == State::Gone {
            let was = self.clusters.remove(name);
            self.ready -= usize::from(was.is_some_and(|times| times.ready.is_some()));
            self.failed.remove(name);
            return;
        }
        let times = self.clusters.entry(name.to_owned()).or_default();
        if state == State::Ready && times.ready.is_none() {
            times.ready = Some(at);
            self.ready += 1;
        }
        match state {
            State::Failed(why) => drop(self.failed.insert(name.to_owned(), why)),
            _ => drop(self.failed.remove(name)),
        }
    }

    /// The number of clusters that exist or were requested.
    pub fn clusters(&self) -> usize {
        self.clusters.len()
    }

    /// The number of clusters that have been Ready.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Names and messages of failed clusters.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.failed.iter().map(|(name, why)| (name.as_str(), why.as_str()))
    }

    /// Returns the current counts and times.
    pub fn summary(&self, now: Duration) -> Summary {
        let own = self.clusters.values().filter_map(|times| Some((times.created?, times.ready?)));
        let mut took: Vec<Duration> =
            own.clone().map(|(created, ready)| ready.saturating_sub(created)).collect();
        took.sort();
        let last = own.map(|(_, ready)| ready).max().unwrap_or(now);
        let seconds = if self.ready == self.clusters.len() { last } else { now }.as_secs_f64();
        Summary {
            clusters: self.clusters.len(),
            ready: self.ready,
            failed: self.failed.len(),
            seconds,
            rate: if seconds > 0.0 { took.len() as f64 / seconds } else { 0.0 },
            p50_seconds: percentile(&took, 50).as_secs_f64(),
            p99_seconds: percentile(&took, 99).as_secs_f64(),
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn only_times_of_clusters_created_by_this_fleet_count() {
        let mut progress = Progress::default();
        progress.record("adopted", State::Ready, seconds(0));
        for n in 1..=4 {
            progress.created(&n.to_string(), seconds(1));
            progress.record(&n.to_string(), State::Waiting, seconds(2));
            progress.record(&n.to_string(), State::Ready, seconds(1 + n));
            // Only the first Ready counts.
            progress.record(&n.to_string(), State::Ready, seconds(100));
        }
        let summary = progress.summary(seconds(100));
        assert_eq!((summary.clusters, summary.ready, summary.failed), (5, 5, 0));
        assert_eq!((summary.p50_seconds, summary.p99_seconds), (2.0, 4.0));
        assert_eq!((summary.seconds, summary.rate), (5.0, 0.8));
    }

    #[test]
    fn resolved_failures_and_deleted_clusters_do_not_count() {
        let mut progress = Progress::default();
        progress.created("a", seconds(0));
        progress.record("a", State::Failed("no disk".into()), seconds(1));
        assert_eq!(progress.summary(seconds(2)).failed, 1);
        assert_eq!(progress.failures().collect::<Vec<_>>(), [("a", "no disk")]);
        progress.record("a", State::Ready, seconds(3));
        assert_eq!(progress.summary(seconds(4)).failed, 0);
        progress.record("a", State::Gone, seconds(5));
        assert_eq!((progress.clusters(), progress.ready()), (0, 0));
        progress.record("a", State::Gone, seconds(5));
    }
}
