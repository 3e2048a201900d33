//! Structured merge: tracks which writer owns which field of an object, so that several writers can change one object
//! without overwriting each other. It implements `kubectl apply --server-side`, `metadata.managedFields` and strategic
//! merge patches.
//!
//! The crate works on `serde_json::Value` and a [`schema::Schema`] that the caller builds. It does not depend on HTTP,
//! storage, kinds, clocks (the time is an argument) or the rest of Drover.
//!
//! Start reading at [`managed::FieldManager`], which a server calls once per write. It is based on:
//!
//! * [`fieldpath`]: path elements, sets of paths, and their serialized form `FieldsV1`;
//! * [`schema`]: types, which determine how lists and maps are merged;
//! * [`typed`]: validate, merge, compare, remove, extract, driven by a type;
//! * [`managed`]: managedFields entries, update, apply, conflicts;
//! * [`strategic`]: strategic merge patch, which follows its own, older rules.
//!
//! The behaviour follows sigs.k8s.io/structured-merge-diff v6 and k8s.io/apimachinery v0.36; `tests/oracle` runs random
//! histories with both and compares the results.

pub mod fieldpath;
pub mod managed;
pub mod schema;
pub mod strategic;
pub mod typed;
pub mod value;
