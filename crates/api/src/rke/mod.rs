//! `rke.cattle.io`: the providers' objects, one per hand-off.

pub mod v1;
