//! `rke.cattle.io`: the objects of the bootstrap, control plane and infrastructure providers.

pub mod v1;
