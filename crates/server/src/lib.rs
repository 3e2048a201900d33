//! The management plane in one process: the API, every controller, tunnels, proxy and assets behind one HTTPS port.
//!
//! * [`manager`]: what is started, in which order, and how it is stopped. Start reading there.
//! * [`plane`]: the management plane without data directory, local machines and child processes.
//! * [`backend`]: the Kubernetes API: embedded, or [`external`].
//! * `prepare`: what must exist in it before the first controller looks.
//! * [`front`]: answers requests, each by the route of its path ([`routes`]).
//! * `connections`: the limits of connections to the port follow the settings.
//! * `download`: files that machines download.
//! * [`admission`]: defaults and validation inside the embedded API.
//! * `certificate`: the port's certificate follows the settings.
//! * `machines`: what provisioning knows of the machines that open tunnels.
//! * `kubeconfigs`: takes kubeconfigs away with their clusters.
//! * [`datadir`]: what lies where in the data directory.
//! * [`metrics`]: what all parts count, for Prometheus.
//! * [`shell`]: words that people copy.
//!
//! This crate puts things together; it decides nothing about clusters or machines.

pub mod admission;
pub mod backend;
mod certificate;
mod connections;
pub mod datadir;
mod download;
pub mod drivers;
pub mod external;
pub mod front;
mod kubeconfigs;
mod machines;
pub mod manager;
pub mod metrics;
pub mod plane;
mod prepare;
pub mod routes;
pub mod shell;

pub use datadir::DataDir;
pub use drover_access::connected::RETURN_LIMIT;
pub use manager::{Manager, ManagerOptions};
