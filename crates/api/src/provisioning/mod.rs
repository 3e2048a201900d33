//! `provisioning.cattle.io`: what a person asks for.

pub mod v1;
