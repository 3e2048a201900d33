//! `management.cattle.io`: the objects of the management plane.

pub mod v3;
