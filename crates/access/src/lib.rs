//! Access to downstream clusters for users and controllers: registration, tunnels, and the proxy.
//!
//! * [`registration`]: what a cluster's agent says when it opens its tunnel, and what is recorded of it.
//! * [`gate`]: who may open the tunnel of a cluster, and when its session is dialled by others.
//! * [`authority`]: the authority that a registration names, against those that machines reported; pure.
//! * [`machines`]: what this crate asks about the machines of a cluster; the server answers.
//! * [`downstream`]: HTTP to a cluster's API through its tunnel.
//! * [`clusters`]: access to all clusters for controllers, through tunnels and with kubeconfigs.
//! * [`connected`]: the `Connected` condition.
//! * [`proxy`][]: `/k8s/clusters/<id>/…`.
//! * [`hop`]: headers and upgrades in proxies.
//! * [`tokens`]: credentials that this crate recognises.
//!
//! This crate knows clusters only as `management.cattle.io/v3` objects; it must not know how they are provisioned,
//! nor on which sockets the server listens. Start reading at [`downstream`].

pub mod authority;
pub mod clusters;
pub mod connected;
pub mod downstream;
pub mod gate;
pub mod hop;
pub mod machines;
pub mod proxy;
pub mod registration;
pub mod tokens;

pub use downstream::Downstreams;
