//! Role-based access control. Start with `rule.rs` (what one rule allows), then `policy.rs` (the rules of a user), then
//! `authorizer.rs` (how the policy follows the store).

mod admission;
pub mod aggregation;
mod authorizer;
pub mod bootstrap;
pub mod policy;
pub mod rule;

pub use admission::RbacAdmission;
pub use authorizer::Rbac;
pub use rule::Rule;
