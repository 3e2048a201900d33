//! Images from registries: against a registry that misbehaves on command, the management plane's own, and the one
//! that most others are measured by.
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
