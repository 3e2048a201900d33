//! The table of served resources, for discovery, routing and controllers.
//!
//! The table is replaced as a whole, so a client sees a CRD in all forms of discovery or in none.

mod def;
mod table;

pub use def::{
    Connect, ConnectRequest, NameRule, Propagation, ResourceDef, Rules, ScalePaths, SelectableField, Serve,
    SubresourceDef, Virtual,
};
pub(crate) use table::group_priority;
pub use table::{Editor, GroupVersions, Resource, ResourceTable, Snapshot, version_order};
