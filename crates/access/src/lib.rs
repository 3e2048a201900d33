//! How people and controllers reach downstream clusters: registration, the way through the tunnel, the proxy.
//!
//! * [`registration`]: what a cluster's agent says when it opens its tunnel, and what is recorded of it.
//! * [`gate`]: who may open the tunnel of a cluster, and when its session is dialled by others.
//! * [`authority`]: the authority that a registration names, against those that machines reported; pure.
//! * [`machines`]: what this crate asks about the machines of a cluster; the server answers.
//! * [`downstream`]: HTTP to a cluster's API through its tunnel.
//! * [`clusters`]: all clusters as controllers use them, through tunnels and by kubeconfigs.
//! * [`connected`]: the `Connected` condition, from real answers.
//! * [`proxy`][]: `/k8s/clusters/<id>/…`.
//! * [`hop`]: headers and upgrades, as every proxy treats them.
//! * [`tokens`]: the credentials this crate recognises, found by index.
//!
//! This crate knows clusters only as `management.cattle.io/v3` objects; it must not know how they are
//! provisioned, nor which sockets the server listens on. Start reading at [`downstream`].

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
