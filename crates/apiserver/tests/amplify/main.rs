//! What one request may cost, counted with the allocator of the test process: for each way in which a small request could
//! make a large object, a long computation or a large answer, what it takes now and where it stops.
//!
//! The times are those of an unoptimised build and generous: they are there to catch what grows with the square of the
//! input.

// A test that cannot go on may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
// The allocator that counts is the only unsafe code.
#![allow(unsafe_code)]

mod bodies;
mod harness;
mod meter;
mod patches;
mod reads;
mod schemas;
