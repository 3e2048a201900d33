//! The whole line in one process, with simulated servers and agents: real API servers, real controllers.

// Helpers outside `#[test]` functions may unwrap as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cluster;
mod command;
mod cost;
mod crash;
mod custom;
mod garbage;
mod identity;
mod late;
mod players;
mod ready;
mod registration;
mod removal;
mod scoped;
mod upkeep;
mod world;
mod writes;
