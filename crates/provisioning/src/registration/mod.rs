//! What a machine talks to before it has a plan.

pub mod check;
pub mod command;
pub mod connect;
pub mod machines;
