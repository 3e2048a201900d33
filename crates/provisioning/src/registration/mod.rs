//! What a machine talks to before it has a plan.

pub mod address;
mod admit;
mod bearer;
pub mod check;
pub mod command;
pub mod connect;
mod credential;
pub mod machines;
mod queue;
pub mod rate;
pub mod roles;
pub mod terms;
mod waiting;
