//! Cluster API core controllers: Cluster, MachineDeployment, MachineSet and Machine.
//!
//! Each controller is a folder: `scope` is the input of a pass, `observe` reads it from caches, `decide` is pure
//! (time and names are inputs), `apply` writes, and `status` is pure as well. Providers are known only by their
//! contract ([`contract`], [`external`]); managed clusters only through
//! [`ClusterAccess`](drover_access_api::ClusterAccess). Defaults and validation are in [`admission`], for API
//! servers, webhooks and the controllers themselves. Waits and their texts are in [`waits`].
//!
//! MachineHealthChecks have no effect yet; [`machinehealthcheck`] reports that.
//!
//! This crate knows nothing of K3s, RKE2, plans, drivers or tunnels.
//!
//! Start reading at [`manager::run`], then `machinedeployment/decide.rs` and `machine/deletion.rs`.

pub mod admission;
mod apply;
pub mod cluster;
pub mod conditions;
pub mod contract;
pub mod external;
#[cfg(test)]
mod fixtures;
pub mod machine;
pub mod machinedeployment;
pub mod machinehealthcheck;
pub mod machineset;
pub mod manager;
pub mod meta;
pub mod version;
pub mod waits;

pub use manager::run;
