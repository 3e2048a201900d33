//! What the tests share.

#![allow(dead_code, unreachable_pub)] // each test file uses its part
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

pub mod api;
pub mod machine;
pub mod manager;
pub mod node;
pub mod nspawn;
pub mod patient;
pub mod wine;

pub use api::*;
