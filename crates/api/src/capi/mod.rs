//! `cluster.x-k8s.io`: the core objects of Cluster API.

pub mod v1beta2;
