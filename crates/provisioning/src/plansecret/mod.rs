//! Plan secrets (`rke.cattle.io/machine-plan`): the only module that parses, judges and edits them.
//!
//! A plan secret has two writers: the machine's agent, and the planner ([`crate::controlplane`]), which writes it at most
//! once per pass. Everything that the server has to say in a pass is an edit of the same copy:
//!
//! - [`state`]: what the secret says about its machine, parsed once per version ([`views`]);
//! - [`garbage`], [`failure`]: values that cannot be used, and why a plan could not be applied;
//! - [`upkeep`]: what the server adds to the agent's report: `appliedPlan`, the stamp of passed probes, a retry;
//! - [`edit`]: plans, annotations and labels, and the reason of each edit;
//! - [`readable`]: the Machine's condition `PlanSecretReadable`.

pub mod edit;
pub mod failure;
pub mod garbage;
pub mod readable;
pub mod state;
pub mod upkeep;
pub mod views;

pub use edit::{FailurePolicy, Reason};
pub use state::NodeState;
pub use views::Views;
