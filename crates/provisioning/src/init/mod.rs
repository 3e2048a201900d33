//! From a provisioning Cluster to its management twin and the Cluster API objects.

pub mod controller;
pub mod events;
pub mod generate;
pub mod identity;
pub mod kubeconfig;
pub mod log;
pub mod names;
pub mod never;
pub mod nodemarks;
pub mod objectset;
pub mod pools;
pub mod problems;
pub(crate) mod removal;
pub mod remove;
pub mod schemas;
pub mod shortfall;
pub mod status;
pub mod template;
pub mod token;
pub mod twin;

#[cfg(test)]
mod tests;
