//! The planner: which machine gets which plan, and when. Pure; [`pass::decide`] is the entry.

pub mod change;
pub mod concurrency;
pub mod drain;
pub mod entry;
pub mod events;
pub mod failure;
pub mod garbage;
pub mod initnode;
pub mod join;
pub mod node;
pub mod pass;
pub mod releases;
pub mod render;
pub mod runtime;
pub mod status;
pub mod tier;
pub mod write;

#[cfg(test)]
mod tests;
