//! Access to downstream clusters for users and controllers: registration, tunnels, and the proxy.
//!
//! * [`registration`]: what a cluster's agent registers when it opens its tunnel.
//! * [`acceptor`]: decides which tunnels are accepted and used.
//! * [`authority`]: compares the CA of a registration with those that machines reported; pure.
//! * [`machines`]: queries about the machines of a cluster, which the server answers.
//! * [`downstream`]: HTTP to a cluster's API through its tunnel.
//! * [`clusters`]: access to all clusters for controllers, through tunnels and with kubeconfigs.
//! * [`connected`]: the `Connected` condition.
//! * [`proxy`][]: `/k8s/clusters/<id>/…`.
//! * [`hop`]: headers and upgrades in proxies.
//! * [`tokens`]: credentials that this crate recognises.
//!
//! This crate knows clusters only as `management.cattle.io/v3` objects; it must not know how they are provisioned,
//! nor on which sockets the server listens. Start reading at [`downstream`].

pub mod acceptor;
pub mod authority;
pub mod clusters;
pub mod connected;
pub mod downstream;
pub mod hop;
pub mod machines;
pub mod proxy;
pub mod registration;
pub mod tokens;

pub use downstream::Downstreams;
