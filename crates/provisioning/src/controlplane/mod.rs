//! Control plane provider: from an RKEControlPlane and its Machines to machine plans.

pub mod controller;
pub mod drain;
pub mod machinedrain;
pub mod manifest;
pub mod observe;
pub mod planner;
pub mod plansecret;
pub mod readable;
