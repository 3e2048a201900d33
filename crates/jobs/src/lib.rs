//! Runs batch/v1 Jobs as child processes of this host, with the embedded API or an external one.
//!
//! The runner runs Jobs that have the configured label and `managedBy`. It writes their Secrets to files, creates a
//! kubeconfig for their ServiceAccount, and passes the container's arguments to the child. Each attempt leaves a Pod
//! record with exit code and termination message, and the Job gets the same status as from the Job controller, so that
//! its creator needs no special handling.
//!
//! * [`decide`]: the next step for a Job, as pure functions.
//! * [`attempt`]: one child process and its inputs.
//! * `slots`: how many Jobs run at once, and which is next.
//! * [`runner`]: the controller.
//!
//! A child continues to run if the runner is killed. It inherits a lock file per Job key, and a new runner waits until
//! an orphaned child has released it: two children of a Job never run at the same time. Programs must therefore be
//! repeatable.
//!
//! This crate does not depend on machines or drivers; the program to run is a parameter.

pub mod attempt;
pub mod decide;
mod metrics;
pub mod runner;
mod slots;

pub use metrics::Metrics;
pub use runner::{Runner, RunnerOptions};
