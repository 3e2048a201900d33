//! Cluster infrastructure provider: RKECluster.

pub mod controller;
pub mod decide;
