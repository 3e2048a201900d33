//! A thin layer on kube that all controllers share.
//!
//! * [`cache`]: one watch and one copy per kind and selector, with indexes and any number of independent subscribers.
//! * [`queue`] and [`controller`]: a keyed work queue and the loop that feeds a [`Reconciler`] from caches.
//! * [`apply`]: server-side apply that skips unchanged objects.
//! * [`pace`]: what a status only reports is written once it has settled.
//! * [`finalizer`], [`conditions`], [`events`]: helpers of reconcilers.
//! * [`metrics`]: metrics of all of these, for Prometheus.
//! * [`vital`]: stops the program if essential work panics.
//! * [`client`], [`fault`], [`clock`]: seams for tests: the API in process, a client that fails or dies at call N,
//!   and time as an input.
//!
//! This crate knows Kubernetes, but nothing of clusters, machines or plans. Start reading at [`controller`].

pub mod apply;
pub mod cache;
pub mod client;
pub mod clock;
pub mod conditions;
pub mod controller;
pub mod error;
pub mod events;
pub mod expectations;
pub mod fault;
mod fields;
pub mod finalizer;
pub mod key;
pub mod metrics;
pub mod pace;
pub mod queue;
pub mod vital;

pub use cache::{Cache, Caches, Change};
pub use client::in_process_client;
pub use clock::{Clock, SystemClock, TokioClock};
pub use controller::{Controller, Next, Reconciler};
pub use error::Error;
pub use expectations::Expectations;
pub use fields::owned_fields;
pub use key::ObjectKey;
pub use metrics::Metrics;
pub use vital::vital;
