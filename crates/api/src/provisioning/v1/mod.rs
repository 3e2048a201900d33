//! Version v1 of `provisioning.cattle.io`.

mod cluster;
mod customization;
mod rke_config;
mod unimplemented;

pub use cluster::*;
pub use customization::*;
pub use rke_config::*;
pub use unimplemented::unimplemented_fields;

/// The API group.
pub const GROUP: &str = "provisioning.cattle.io";
/// The API version, with its group.
pub const API_VERSION: &str = "provisioning.cattle.io/v1";
