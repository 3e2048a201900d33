//! The server through its HTTP service: in process for most, over a socket with real kubectl at the end.

// Helpers of tests are tests, too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod conventions;
mod harness;
mod kubectl;
mod watching;
mod whole;
