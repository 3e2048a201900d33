//! Metrics of the runner.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics of a runner. Clones share the same values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    processes: Family<State, Gauge>,
    limit: Gauge,
    attempts: Family<Ended, Counter>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct State {
    state: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Ended {
    result: &'static str,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        self.set_counts((0, 0), 0);
        for result in ["succeeded", "failed", "stopped"] {
            self.attempts.get_or_create_owned(&Ended { result });
        }
        let help = "Jobs whose process is running, and queued Jobs";
        registry.register("drover_job_processes", help, self.processes.clone());
        registry.register(
            "drover_job_processes_limit",
            "Maximum number of processes of Jobs",
            self.limit.clone(),
        );
        let help = "Processes of Jobs that have exited, by result";
        registry.register("drover_job_attempts", help, self.attempts.clone());
    }

    pub(crate) fn set_counts(&self, (running, queued): (usize, usize), limit: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.processes.get_or_create(&State { state: "running" }).set(number(running));
        self.processes.get_or_create(&State { state: "queued" }).set(number(queued));
        self.limit.set(number(limit));
    }

    pub(crate) fn ended(&self, result: &'static str) {
        self.attempts.get_or_create(&Ended { result }).inc();
    }
}
