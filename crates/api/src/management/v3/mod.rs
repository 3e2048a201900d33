//! Version v3 of `management.cattle.io`.

mod cluster;
mod dynamic_schema;
mod node_driver;
mod registration_token;
mod setting;

pub use cluster::*;
pub use dynamic_schema::*;
pub use node_driver::*;
pub use registration_token::*;
pub use setting::*;

/// The API group.
pub const GROUP: &str = "management.cattle.io";
/// The API version, with its group.
pub const API_VERSION: &str = "management.cattle.io/v3";
