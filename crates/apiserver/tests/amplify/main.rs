//! The resource limits of requests, measured with the allocator of the test process: for each way in which a small
//! request could cause a large object, a long computation or a large response, the cost and the limit.
//!
//! The time limits are generous, for unoptimised builds: they detect algorithms that are quadratic in the size of the
//! input.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
// The counting allocator is the only unsafe code.
#![allow(unsafe_code)]

mod bodies;
mod harness;
mod meter;
mod patches;
mod reads;
mod schemas;
