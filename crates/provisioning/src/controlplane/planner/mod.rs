//! The parts of a pass: which machine starts the cluster, which plan each machine should have, and which of them may get it
//! now. Pure; [`super::decide`] is the entry.

pub mod concurrency;
pub mod drain;
pub mod entry;
pub mod initnode;
pub mod join;
pub mod releases;
pub mod render;
pub mod runtime;
pub mod tier;

#[cfg(test)]
mod tests;
