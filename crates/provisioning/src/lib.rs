//! The providers, in the order of the hand-offs:
//!
//! 1. [`init`]: a provisioning Cluster becomes its management twin and the Cluster API objects.
//! 2. [`cluster`]: RKECluster, the cluster infrastructure provider.
//! 3. [`bootstrap`]: RKEBootstrap, which gives each machine its plan secret and its bootstrap script.
//! 4. [`machine`]: machine drivers as API kinds, a Job per server, custom machines, and their Nodes.
//! 5. [`controlplane`]: RKEControlPlane; the planner writes machine plans and waits for them.
//!
//! [`registration`] is what a machine talks to before it has a plan; [`admission`] says which writes others would suffer
//! from.
//!
//! In each, `decide` is pure (no client, no clock, no randomness) and its controller is thin. This crate must
//! not know how the API is served, how a tunnel works or what a driver does: downstream clusters are reached
//! only through [`ClusterAccess`](drover_access_api::ClusterAccess), servers are made only by Jobs. Start reading at
//! [`controlplane::decide`], the core; [`controllers`] wires everything together.

pub mod admission;
pub mod bootstrap;
pub mod cluster;
pub mod conditions;
pub mod context;
pub mod controllers;
pub mod controlplane;
pub mod digest;
pub mod dynamic;
pub mod init;
pub mod keys;
pub mod machine;
pub mod owner;
pub mod plansecret;
pub mod registration;
pub mod selectors;
pub mod settings;
pub mod store;
