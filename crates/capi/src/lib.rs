//! Cluster API core controllers: Cluster, MachineDeployment, MachineSet and Machine.
//!
//! Each controller is a folder: `scope` is everything a pass knows, `observe` gathers it from caches, `decide` says
//! what should be (pure, with time and names as inputs), `apply` writes it, `status` reports (pure). Providers are
//! known only by their contract ([`contract`], [`external`]); managed clusters only through
//! [`ClusterAccess`](drover_access_api::ClusterAccess).
//! Defaults and validation are in [`admission`], for API servers, webhooks and the controllers themselves; what is
//! waited for, with its texts, is in [`waits`].
//!
//! Of MachineHealthChecks [`machinehealthcheck`] says only that nothing acts on them yet.
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
