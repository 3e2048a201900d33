//! Images from registries, over the OCI distribution API.
//!
//! [`registries`] says whom to ask (pure), [`challenge`] parses their answers (pure),
//! [`session`] speaks with one registry, [`cache`] keeps layers on disk, and [`pull`] goes through all of it.

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
