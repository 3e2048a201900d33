//! Shared by the tests.

#![allow(dead_code, unreachable_pub)] // each test file uses a part
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

pub mod api;
pub mod machine;
pub mod manager;
pub mod node;
pub mod nspawn;
pub mod patient;
pub mod root;
pub mod wine;

pub use api::*;

use std::time::Duration;

use serde_json::json;

/// Waits for something that should be quick, with a long deadline for busy machines.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "timed out waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A plan with one instruction, a line of shell.
pub fn shell(script: &str) -> String {
    json!({"instructions": [{"name": "i", "command": "sh", "args": ["-c", script], "saveOutput": true}]})
        .to_string()
}
