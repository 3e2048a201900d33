//! The server through its HTTP service: mostly in process, finally with the real kubectl over a socket.

// Helpers of tests count as tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod conventions;
mod harness;
mod kubectl;
mod watching;
mod whole;
