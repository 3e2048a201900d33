//! The number of objects in the caches, read at each scrape.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::Caches;

/// `drover_cache_objects{resource}`.
pub struct CacheSizes(pub Caches);

impl fmt::Debug for CacheSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheSizes")
    }
}

impl Collector for CacheSizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Caches of one resource with different selectors are added up.
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for (resource, size) in self.0.sizes() {
            *sizes.entry(resource).or_default() += size;
        }
        let help = "Objects in the controllers' caches";
        let mut family = encoder.encode_descriptor("drover_cache_objects", help, None, MetricType::Gauge)?;
        for (resource, size) in sizes {
            let size = i64::try_from(size).unwrap_or(i64::MAX);
            ConstGauge::new(size).encode(family.encode_family(&[("resource", resource)])?)?;
        }
        Ok(())
    }
}
