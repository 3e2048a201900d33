//! Machines: the trait of all drivers, the store that records machines, and the commands of `drover machine`.
//!
//! It must not depend on a Kubernetes client (a secret store uses a [`store::SecretClient`]), nor on clusters, plans or
//! the purpose of a machine.
//!
//! Start reading at [`driver::Driver`], then [`store`], then [`cli`].

pub mod archive;
pub mod cli;
pub mod driver;
pub mod flags;
pub mod host;
pub mod sshkey;
pub mod store;
