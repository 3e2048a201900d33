//! `cluster.x-k8s.io`: Cluster API's core objects.

pub mod v1beta2;
