//! The whole line in one process. The management plane is the server's own, on storage in memory and a loopback port;
//! every machine is a `MemoryHost` that runs the real agent with its tunnel; what a plan installs is the simulated K3s,
//! with its own API, certificates, join tokens and Nodes.
//!
//! Played is only what needs a real machine: the Job runner with its driver ([`datacenter`]), the install script
//! ([`bootstrap`]), the installer's `run.sh` and systemd ([`k3s`]).

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers outside #[test] functions

mod bootstrap;
mod crash;
mod datacenter;
mod garbage;
mod hands;
mod k3s;
mod life;
mod machine;
mod restart;
mod settings;
mod site;
mod story;
mod wire;
