//! Version v1beta2 of `cluster.x-k8s.io`.

mod cluster;
mod common;
mod machine;
mod machinedeployment;
mod machinehealthcheck;
mod machineset;
mod topology;

pub use cluster::*;
pub use common::*;
pub use machine::*;
pub use machinedeployment::*;
pub use machinehealthcheck::*;
pub use machineset::*;
pub use topology::*;

/// The API group.
pub const GROUP: &str = "cluster.x-k8s.io";
/// The API version, with its group.
pub const API_VERSION: &str = "cluster.x-k8s.io/v1beta2";
