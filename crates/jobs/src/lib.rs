//! Runs batch/v1 Jobs as child processes of this host, on the embedded API and on others.
//!
//! A Job that carries the chosen label and names us in `managedBy` is run: its Secrets become files, its ServiceAccount a kubeconfig, its
//! container's arguments the child's. Each attempt leaves a Pod record with exit code and termination message, and
//! the Job gets the status that the Job controller would give it, so that whoever made the Job cannot tell.
//!
//! * [`decide`]: what a Job needs next, pure.
//! * [`attempt`]: one child process and everything it is given.
//! * `slots`: how many run at once, and who is next.
//! * [`runner`]: the controller around all of them.
//!
//! Children outlive a killed runner. A lock file per Job key, inherited by the child, makes a successor wait until
//! an orphan is gone: two never act together. The programs run must therefore be repeatable.
//!
//! This crate knows nothing of machines or drivers; the program to run is a parameter.

pub mod attempt;
pub mod decide;
mod metrics;
pub mod runner;
mod slots;

pub use metrics::Metrics;
pub use runner::{Runner, RunnerOptions};
