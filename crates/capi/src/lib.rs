//! Cluster API core controllers.
