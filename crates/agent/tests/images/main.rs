//! Images from registries: a registry with faults, the management plane's own, and the reference implementation.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod binary;
#[path = "../common/mod.rs"]
mod common;
mod distribution;
mod fake;
mod manager;
mod node;
mod pulling;
mod trouble;
