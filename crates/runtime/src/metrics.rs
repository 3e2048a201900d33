//! Metrics of controllers, their queues and caches, with the names of client-go and controller-runtime.
//!
//! [`Metrics`] belongs to a [`Caches`](crate::Caches); a controller is counted with the caches that feed it. Nothing
//! is global, so that several management planes in one process are counted separately.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use caches::CacheSizes;
pub use requests::{CountRequests, Requests};

mod caches;
mod requests;

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The instruments of all controllers of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    families: Arc<Families>,
}

#[derive(Debug)]
struct Families {
    depth: Family<Queue, Gauge>,
    adds: Family<Queue, Counter>,
    retries: Family<Queue, Counter>,
    waited: Histograms<Queue>,
    worked: Histograms<Queue>,
    reconciles: Family<Outcome, Counter>,
    errors: Family<Controller, Counter>,
    panics: Family<Controller, Counter>,
    active: Family<Controller, Gauge>,
    limit: Family<Controller, Gauge>,
    lists: Family<Listed, Counter>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Queue {
    name: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Controller {
    controller: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Listed {
    resource: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Outcome {
    controller: &'static str,
    result: &'static str,
}

/// From 10 µs, for a pass without work, to 42 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-5, 4.0, 12))
}

impl Default for Families {
    fn default() -> Self {
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(seconds),
            worked: Family::new_with_constructor(seconds),
            reconciles: Family::default(),
            errors: Family::default(),
            panics: Family::default(),
            active: Family::default(),
            limit: Family::default(),
            lists: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers every instrument.
    pub fn register(&self, registry: &mut Registry) {
        let all = &*self.families;
        registry.register("workqueue_depth", "Keys that wait in a work queue", all.depth.clone());
        registry.register("workqueue_adds", "Keys put into a work queue", all.adds.clone());
        registry.register(
            "workqueue_retries",
            "Keys put into a work queue again after a failure",
            all.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time that keys waited in a work queue",
            all.waited.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Time that keys were worked on",
            all.worked.clone(),
        );
        registry.register("controller_runtime_reconcile", "Reconciles by result", all.reconciles.clone());
        registry.register(
            "controller_runtime_reconcile_errors",
            "Reconciles that failed",
            all.errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_panics",
            "Reconciles that panicked",
            all.panics.clone(),
        );
        registry.register("controller_runtime_active_workers", "Reconciles that run now", all.active.clone());
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciles that may run at once",
            all.limit.clone(),
        );
        registry.register(
            "drover_cache_lists",
            "Reads of all objects of a controllers' cache",
            all.lists.clone(),
        );
    }

    pub(crate) fn queue(&self, name: &'static str) -> QueueMetrics {
        let (all, labels) = (&self.families, Queue { name });
        QueueMetrics {
            depth: all.depth.get_or_create_owned(&labels),
            adds: all.adds.get_or_create_owned(&labels),
            retries: all.retries.get_or_create_owned(&labels),
            waited: all.waited.get_or_create_owned(&labels),
            worked: all.worked.get_or_create_owned(&labels),
        }
    }

    /// Counts the reads of all objects of a cache.
    pub(crate) fn lists(&self, resource: String) -> Counter {
        self.families.lists.get_or_create_owned(&Listed { resource })
    }

    pub(crate) fn controller(&self, controller: &'static str) -> ControllerMetrics {
        let (all, labels) = (&self.families, Controller { controller });
        let result = |result| all.reconciles.get_or_create_owned(&Outcome { controller, result });
        ControllerMetrics {
            success: result("success"),
            requeue: result("requeue"),
            requeue_after: result("requeue_after"),
            error: result("error"),
            errors: all.errors.get_or_create_owned(&labels),
            panics: all.panics.get_or_create_owned(&labels),
            active: all.active.get_or_create_owned(&labels),
            limit: all.limit.get_or_create_owned(&labels),
        }
    }
}

/// The instruments of one queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueMetrics {
    pub(crate) depth: Gauge,
    pub(crate) adds: Counter,
    pub(crate) retries: Counter,
    pub(crate) waited: Histogram,
    pub(crate) worked: Histogram,
}

/// The instruments of one controller.
#[derive(Clone, Debug)]
pub(crate) struct ControllerMetrics {
    pub(crate) success: Counter,
    /// The cache was behind, so the pass is repeated.
    pub(crate) requeue: Counter,
    pub(crate) requeue_after: Counter,
    pub(crate) error: Counter,
    pub(crate) errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) active: Gauge,
    pub(crate) limit: Gauge,
}
