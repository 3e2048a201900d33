//! The management plane in one process: the API, every controller, tunnels, proxy and assets behind one HTTPS port.
//!
//! * [`manager`]: starts and stops everything. Start reading there.
//! * [`plane`]: the management plane without data directory, local machines and child processes.
//! * [`backend`]: the Kubernetes API, embedded or [`external`].
//! * `prepare`: creates what must exist before the first controller starts.
//! * [`front`]: dispatches requests by path ([`routes`]).
//! * `connections`: limits of connections to the port.
//! * `download`: files that machines download.
//! * [`admission`]: defaults and validation in the embedded API.
//! * `certificate`: updates the port's certificate when settings change.
//! * `machines`: what provisioning knows about the machines that open tunnels.
//! * `kubeconfigs`: deletes the kubeconfigs of deleted clusters.
//! * [`datadir`]: the layout of the data directory.
//! * [`metrics`]: the metrics of all parts.
//! * [`shell`]: quoting of commands that people copy.
//!
//! This crate combines the other crates; it decides nothing about clusters or machines.

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
