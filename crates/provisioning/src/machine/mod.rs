//! Machine provider: drivers as API kinds, a Job per server, custom machines, and their Nodes.

pub mod args;
pub mod custom;
pub mod drivers;
pub mod lostnodes;
pub mod missing;
pub mod nodelookup;
pub mod nodes;
pub mod nodesync;
pub mod provision;
pub mod schema;
pub mod unmanaged;
