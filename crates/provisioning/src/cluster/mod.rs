//! Cluster infrastructure provider: RKECluster.

pub mod decide;
