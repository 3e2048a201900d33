//! Metrics of tunnels to clusters.

use std::fmt;

use drover_tunnel::Registry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::gauges;

/// `drover_tunnel_sessions`, `drover_tunnel_streams` and `drover_tunnel_bytes_total{direction}`.
pub struct Tunnels(pub Registry);

impl fmt::Debug for Tunnels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tunnels")
    }
}

impl Collector for Tunnels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let usage = self.0.usage();
        let none: [(&str, &str); 0] = [];
        gauges(&mut encoder, "drover_tunnel_sessions", "Open tunnels to clusters", [(none, usage.sessions)])?;
        let help = "Connections inside of tunnels";
        gauges(&mut encoder, "drover_tunnel_streams", help, [(none, usage.connections)])?;
        let help = "Bytes of tunnel frames, seen from the server";
        let mut family = encoder.encode_descriptor("drover_tunnel_bytes", help, None, MetricType::Counter)?;
        for (direction, bytes) in [("received", usage.received), ("sent", usage.sent)] {
            ConstCounter::new(bytes).encode(family.encode_family(&[("direction", direction)])?)?;
        }
        Ok(())
    }
}
