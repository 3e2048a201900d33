//! All API types that Drover reads or writes, one module per group.
//!
//! The types have the names, JSON format, defaults and printer columns of upstream, so that manifests,
//! clients and controllers for Rancher and Cluster API work unchanged. The CRDs are generated from the types
//! by [`crds`]. Keys and values that several controllers use are constants in [`labels`], [`annotations`],
//! [`secret_types`], [`finalizers`] and [`conditions`]; functions that derive names from names are in
//! [`names`]; a [`wait::Wait`] describes what a controller waits for.
//!
//! This crate does not depend on a client, an async runtime or a controller.
//!
//! Start reading at [`provisioning::v1::Cluster`] (which users create), then [`capi::v1beta2`] (which it is
//! translated to) and [`rke::v1`] (the objects of the providers).

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
