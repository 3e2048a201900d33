//! What is served: a table of resources that discovery, routing and controllers read.
//!
//! The table is swapped as a whole, so a client sees a CRD in every form of discovery, or in none.

mod def;
mod table;

pub use def::{
    Connect, ConnectRequest, NameRule, Propagation, ResourceDef, Rules, ScalePaths, SelectableField, Serve,
    SubresourceDef, Virtual,
};
pub(crate) use table::group_priority;
pub use table::{Editor, GroupVersions, Registry, Resource, Snapshot, version_order};
