//! Control plane provider: from an RKEControlPlane and its Machines to machine plans.

pub mod planner;
pub mod plansecret;
