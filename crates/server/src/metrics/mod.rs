//! `/metrics`: the metrics of all parts of the server, in the text format of Prometheus.
//!
//! Each crate has its own instruments; this module registers them in one registry per server. Values that can be read
//! at a scrape are read then (`clusters`, `process`, `tunnels`) and cost nothing otherwise. No label contains the
//! name of a cluster or machine, so that the number of time series does not grow with the fleet. `docs/metrics.md`
//! lists all metrics.

mod agents;
mod clusters;
mod process;
mod tunnels;

use std::fmt;
use std::sync::Arc;

use drover_access::downstream::RequestBody;
use http::{HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

pub use agents::Agents;
pub use clusters::Clusters;
pub use tunnels::Tunnels;

const CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The metrics of one server. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Default for Metrics {
    /// Creates them, with those of the process.
    fn default() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process::of_this_process()));
        Self { registry: Arc::new(Mutex::new(registry)) }
    }
}

impl Metrics {
    /// Registers instruments.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// Registers a collector that is read at every scrape.
    pub fn collect(&self, collector: impl Collector) {
        self.register(|registry| registry.register_collector(Box::new(collector)));
    }

    /// Sets whether this server is the leader, if the API is external.
    pub fn leads(&self, name: &'static str, leads: bool) {
        let status =
            prometheus_client::metrics::family::Family::<[(&'static str, &'static str); 1], Gauge>::default();
        status.get_or_create(&[("name", name)]).set(i64::from(leads));
        let help = "Whether this server is the leader";
        self.register(|registry| registry.register("leader_election_master_status", help, status));
    }

    /// The current values as text.
    pub fn text(&self) -> String {
        let mut body = String::new();
        // It fails only if a collector does, and none does.
        if let Err(error) = text::encode(&mut body, &self.registry.lock()) {
            tracing::error!(%error, "failed to encode the metrics");
        }
        body
    }

    pub(crate) fn answer(&self) -> Response<RequestBody> {
        let mut response = crate::front::text(StatusCode::OK, self.text());
        response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        response
    }
}

/// Writes a gauge with one value per set of labels.
fn gauges<L>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, usize)>,
) -> fmt::Result
where
    L: prometheus_client::encoding::EncodeLabelSet,
{
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
