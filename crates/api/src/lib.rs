//! Every API type that Drover reads or writes, one module per group.
//!
//! Types keep upstream's names, JSON shapes, defaults and printer columns, so that manifests, clients and
//! controllers made for Rancher and Cluster API work unchanged. CRDs are generated from them by
//! [`crds`]. Keys and words that travel between controllers are constants in [`labels`],
//! [`annotations`], [`secret_types`], [`finalizers`] and [`conditions`]; names derived from names are in
//! [`names`]; what is waited for is a [`wait::Wait`].
//!
//! This crate knows no client, no async runtime and no controller.
//!
//! Start reading at [`provisioning::v1::Cluster`] (what a person writes), then [`capi::v1beta2`] (what it
//! becomes) and [`rke::v1`] (the providers' objects).

pub mod annotations;
pub mod capi;
pub mod conditions;
mod crds;
pub mod finalizers;
pub mod labels;
pub mod management;
pub mod names;
mod null;
pub mod provisioning;
pub mod rke;
mod schema;
pub mod secret_types;
pub mod wait;

pub use crds::crds;
