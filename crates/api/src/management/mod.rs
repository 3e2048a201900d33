//! `management.cattle.io`: the management plane's own objects.

pub mod v3;
