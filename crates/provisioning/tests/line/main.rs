//! The whole line in one process, with simulated servers and agents: real API servers, real controllers.

mod cluster;
mod players;
mod registration;
mod world;
