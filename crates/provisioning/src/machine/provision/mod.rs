//! machineprovision: one server per infra machine, made and removed by a Job.

pub mod controller;
pub mod decide;
pub mod events;
pub mod namesake;
pub mod objects;
pub mod state;

#[cfg(test)]
mod tests;
