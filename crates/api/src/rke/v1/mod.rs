//! Version v1 of `rke.cattle.io`.

mod bootstrap;
mod cluster;
mod common;
mod config;
mod control_plane;
mod custom_machine;

pub use bootstrap::*;
pub use cluster::*;
pub use common::*;
pub use config::*;
pub use control_plane::*;
pub use custom_machine::*;

/// The API group.
pub const GROUP: &str = "rke.cattle.io";
/// The API version, with its group.
pub const API_VERSION: &str = "rke.cattle.io/v1";
