//! `provisioning.cattle.io`: the clusters that users create.

pub mod v1;
