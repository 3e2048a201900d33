//! Pulls images from registries, over the OCI distribution API.
//!
//! [`registries`] selects the endpoints (pure), [`challenge`] parses authentication requests (pure), [`session`]
//! communicates with one registry, [`cache`] keeps layers on disk, and [`pull`] combines them.

pub(super) mod cache;
pub mod challenge;
mod credentials;
mod download;
mod endpoint;
mod pull;
pub mod registries;
mod session;
#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, Origin};
pub(super) use pull::Puller;
