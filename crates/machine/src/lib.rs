//! Machines: the driver trait, the drivers, and the machines that the `local` driver makes on this very host.
pub mod local;
