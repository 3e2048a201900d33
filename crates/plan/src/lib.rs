//! The machine plan, its checksum and the keys of its secret, shared by agent and planner.
//!
//! A plan is the desired state of one machine: files, instructions that run once, periodic instructions, and
//! probes. It is stored as JSON in one key of a Secret; the agent reports in the other keys. This crate contains
//! only these types and constants.
//!
//! It must not know a client, a clock, a file system or an async runtime: both sides of the secret depend on
//! it, and the agent has to stay small.
//!
//! Start with [`Plan`], then [`keys`], then [`PlanState`]. The bytes matter: [`checksum`] is computed from the
//! raw plan, so [`to_vec`] writes exactly what Go's `encoding/json` writes for the original's types, and
//! [`from_slice`] accepts everything that Go accepts.

#![deny(missing_docs)]

mod base64_bytes;
mod go_json;
pub mod keys;
mod offer;
mod plan;
mod state;

pub use base64_bytes::from_base64;
pub use go_json::{from_slice, to_vec};
pub use offer::{AGENT_OFFER, AGENT_TUNNEL, AgentOffer};
pub use plan::{
    File, HttpGetAction, OneTimeInstruction, PeriodicInstruction, PeriodicInstructionOutput, Plan, Probe,
    ProbeStatus,
};
pub use state::PlanState;

use sha2::{Digest, Sha256};

/// The identifier of a plan: lowercase hex SHA-256 of its raw bytes.
pub fn checksum(plan: &[u8]) -> String {
    hex::encode(Sha256::digest(plan))
}
