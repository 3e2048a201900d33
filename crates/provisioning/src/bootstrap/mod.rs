//! Bootstrap provider: RKEBootstrap gives each machine its plan secret and the script that fetches it.

pub mod controller;
pub mod hook;
pub mod objects;
pub mod script;
pub mod token;
