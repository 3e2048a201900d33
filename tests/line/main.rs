//! The whole line in one process. The management plane is the server's, with storage in memory and a loopback port;
//! the machines are those of `drover_sim_fleet`, which documents what is real and what is simulated.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod crash;
mod fleet;
mod garbage;
mod hands;
mod jobs;
mod life;
mod restart;
mod settings;
mod site;
mod story;
