//! `/metrics`: what every part of the server counts, in the text format that Prometheus scrapes.
//!
//! Each crate has its own instruments; here they come together in one registry per server. What can be read when somebody
//! scrapes is read then (`clusters`, `process`, `tunnels`), and costs nothing otherwise. No label holds the name of a
//! cluster or machine: the number of time series does not grow with the fleet. `docs/metrics.md` lists all of them.

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
    /// With those of the process.
    fn default() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process::of_this_process()));
        Self { registry: Arc::new(Mutex::new(registry)) }
    }
}

impl Metrics {
    /// Adds instruments.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// Adds what is read at every scrape.
    pub fn collect(&self, collector: impl Collector) {
        self.register(|registry| registry.register_collector(Box::new(collector)));
    }

    /// Says whether this server is the leader, where there may be others.
    pub fn leads(&self, name: &'static str, leads: bool) {
        let status =
            prometheus_client::metrics::family::Family::<[(&'static str, &'static str); 1], Gauge>::default();
        status.get_or_create(&[("name", name)]).set(i64::from(leads));
        let help = "Whether this server is the leader";
        self.register(|registry| registry.register("leader_election_master_status", help, status));
    }

    /// Everything as of now.
    pub fn text(&self) -> String {
        let mut body = String::new();
        // It fails only if a collector says so, and none does.
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
