//! The machine plan, its checksum and its secret's keys, shared by agent and planner.
//!
//! A plan is what the management plane wants one machine to look like: files, instructions that run once,
//! instructions that run again and again, and probes. It travels as JSON in one key of one Secret; the agent
//! answers in the other keys. This crate holds that vocabulary and nothing else.
//!
//! It must not know a client, a clock, a file system or an async runtime: both sides of the secret depend on
//! it, and the agent has to stay small.
//!
//! Start with [`Plan`] (what is said), then [`keys`] (where it is said), then [`PlanState`]. The bytes matter:
//! [`checksum`] is taken over the raw plan, so [`to_vec`] writes what Go's `encoding/json` would write for the
//! original's types, and [`from_slice`] reads whatever Go would read.

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

/// The name under which both sides speak of a plan: lowercase hex SHA-256 of its raw bytes.
pub fn checksum(plan: &[u8]) -> String {
    hex::encode(Sha256::digest(plan))
}
