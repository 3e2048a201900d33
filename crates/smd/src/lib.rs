//! Structured merge: who owns which field of an object, and how several writers change one object
//! without treading on each other. It is what `kubectl apply --server-side` and
//! `metadata.managedFields` rest on, and what a strategic merge patch does to lists.
//!
//! The crate works on `serde_json::Value` and on a [`schema::Schema`] that somebody else built; it
//! knows nothing of HTTP, storage, kinds, clocks (the time comes in as an argument) or of Drover.
//!
//! Start reading at [`managed::FieldManager`], which a server calls once per write. Beneath it:
//!
//! * [`fieldpath`]: path elements and sets of paths, and their `FieldsV1` form on the wire;
//! * [`schema`]: the types that decide what a list or a map means;
//! * [`typed`]: validate, merge, compare, remove, extract, driven by a type;
//! * [`managed`]: managedFields entries, update, apply, conflicts;
//! * [`strategic`]: strategic merge patch, which has its own, older rules.
//!
//! Behaviour follows sigs.k8s.io/structured-merge-diff v6 and k8s.io/apimachinery v0.36;
//! `tests/oracle.rs` plays random histories against both and compares the outcome.

pub mod fieldpath;
pub mod managed;
pub mod schema;
pub mod strategic;
pub mod typed;
pub mod value;
