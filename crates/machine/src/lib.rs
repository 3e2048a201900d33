//! Machines: the trait of all drivers, the `local` driver that makes real Linux hosts on this host, the store that
//! remembers machines, and the verbs of `drover machine`.
//!
//! Must not know: Kubernetes objects or a Kubernetes client (a secret store asks for a [`store::SecretClient`]),
//! clusters, plans, or what a machine is for. It never assumes the name of its own executable: whoever opens
//! [`local::Local`] says which one has its entry points.
//!
//! Start reading at [`driver::Driver`], then [`local`] (the holder, process 1 of a machine, the shims), then [`cli`].

pub mod archive;
pub mod cli;
pub mod driver;
pub mod flags;
pub mod host;
pub mod local;
pub mod sshkey;
pub mod store;
