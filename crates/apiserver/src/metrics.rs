//! Metrics of the server, with kube-apiserver's names.
//!
//! Requests are counted only after the metrics are registered: most servers in a process (simulated clusters, tests)
//! are never scraped and have no overhead. The content of the store is read at each scrape.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use http::Response;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::http::ApiBody;
use crate::storage::Storage;

/// In seconds: from a read served from memory to the longest request.
const DURATION_BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The labels of a request. Each has few possible values, so that callers cannot create new ones.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub(crate) struct Labels {
    pub(crate) verb: &'static str,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    /// The path of a non-resource request.
    pub(crate) subresource: String,
    pub(crate) scope: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Answered {
    #[prometheus(flatten)]
    request: Labels,
    code: u16,
}

/// The request metrics of one server. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    total: Family<Answered, Counter>,
    duration: Family<Labels, Histogram, fn() -> Histogram>,
    long_running: Family<Labels, Gauge>,
}

impl Requests {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let new = Self {
            total: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            long_running: Family::default(),
        };
        let help = "Requests by verb, resource and code, including those from inside the process";
        registry.register("apiserver_request", help, new.total.clone());
        let help = "Time until the response was ready, without watches";
        registry.register("apiserver_request_duration_seconds", help, new.duration.clone());
        registry.register("apiserver_longrunning_requests", "Open watches", new.long_running.clone());
        new
    }

    /// Counts a response. A watch counts as open until its body is dropped.
    pub(crate) fn answered(
        &self,
        labels: Labels,
        began: Instant,
        response: Response<ApiBody>,
    ) -> Response<ApiBody> {
        let watch = labels.verb == "WATCH";
        if !watch {
            self.duration.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        }
        let response = match response.body().len() {
            None if watch => {
                let open = LongRunning::new(self.long_running.get_or_create_owned(&labels));
                response.map(|body| body.counted(open))
            }
            _ => response,
        };
        let answered = Answered { request: labels, code: response.status().as_u16() };
        self.total.get_or_create(&answered).inc();
        response
    }
}

/// An open watch.
pub(crate) struct LongRunning(Gauge);

impl LongRunning {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Commit metrics of a store.
#[derive(Clone, Debug)]
pub(crate) struct Commits {
    pub(crate) writes: Histogram,
    pub(crate) duration: Histogram,
}

impl Default for Commits {
    fn default() -> Self {
        Self {
            writes: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            duration: Histogram::new(exponential_buckets(0.000_1, 2.0, 15)),
        }
    }
}

impl Commits {
    fn register(&self, registry: &mut Registry) {
        let help = "Number of writes per commit";
        registry.register("apiserver_storage_commit_writes", help, self.writes.clone());
        let help = "Duration of a commit until it was durable";
        registry.register("apiserver_storage_commit_duration_seconds", help, self.duration.clone());
    }
}

/// Registers the metrics of a store.
pub(crate) fn register_storage(storage: &Arc<dyn Storage>, registry: &mut Registry) {
    storage.index().commits().register(registry);
    registry.register_collector(Box::new(Stored(storage.clone())));
}

struct Stored(Arc<dyn Storage>);

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stored")
    }
}

impl Collector for Stored {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let index = self.0.index();
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (objects, history) = index.bytes();
        for (name, help, value) in [
            ("apiserver_storage_size_bytes", "Size of the store's files", self.0.size()),
            ("apiserver_storage_object_bytes", "Size of the current objects", objects as u64),
            ("apiserver_storage_history_bytes", "Size of the event history", history as u64),
            ("apiserver_storage_revision", "The latest resourceVersion", index.revision()),
        ] {
            let gauge = ConstGauge::new(number(value));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let help = "Stored objects by resource";
        let mut family =
            encoder.encode_descriptor("apiserver_storage_objects", help, None, MetricType::Gauge)?;
        let mut resources = index.resources();
        resources.sort();
        for (group, resource) in resources {
            let gauge = ConstGauge::new(number(index.count(&group, &resource) as u64));
            let name = if group.is_empty() { resource } else { format!("{resource}.{group}") };
            gauge.encode(family.encode_family(&[("resource", name)])?)?;
        }
        Ok(())
    }
}
